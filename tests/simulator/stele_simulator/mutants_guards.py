"""Known bugs of session guards and of those who ask them, in whole processes with a simulated Redis."""

from stele.domain.image import Image
from stele.session_guard import guard
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN)
def sessions_that_were_open_stay_so(patch: Patch) -> None:
    """A guard forgets no session."""
    plain, known = guard.open_sessions, set[str]()

    def ever(image: Image) -> tuple[str, ...]:
        known.update(plain(image))
        return tuple(sorted(known))

    patch.function(guard.open_sessions, ever)
