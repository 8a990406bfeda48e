"""Known bugs of session guards and of those who ask them, in whole processes with a simulated Redis."""

from collections.abc import Callable
from typing import Final

from stele.domain.image import Image
from stele.log.pulse import Moment
from stele.session_guard import guard
from stele.session_guard.proof import Proofs
from stele.sim.patching import Patch


def checks_ask_for_no_proof(patch: Patch) -> None:
    """A guard answers by the image that it has, whoever cut it off from the log."""

    async def at_once(self: Proofs, max_age_s: float) -> bool:
        return True

    patch.attribute(Proofs, "within", at_once)


def sessions_that_were_open_stay_so(patch: Patch) -> None:
    """A guard forgets no session."""
    plain, known = guard.open_sessions, set[str]()

    def ever(image: Image) -> tuple[str, ...]:
        known.update(plain(image))
        return tuple(sorted(known))

    patch.function(guard.open_sessions, ever)


def proofs_stay_young_while_a_machine_sleeps(patch: Patch) -> None:
    """How old a proof is tells the monotonic clock, which stands meanwhile."""

    def awake(self: Moment, before: Moment) -> float:
        return self.monotonic_s - before.monotonic_s

    patch.attribute(Moment, "after", awake)


GUARD_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (sessions_that_were_open_stay_so,)

GUARD_TEST_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    checks_ask_for_no_proof,
    proofs_stay_young_while_a_machine_sleeps,
)
