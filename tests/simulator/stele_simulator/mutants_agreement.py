"""Known bugs of agreement on the schema: members that are left out, and guards that are behind."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.topology.barriers import AckTable, StateIdOf, unknown
from stele.runtime.answers.session_guard import Liveness, SchemaAgreement
from stele.session_guard import guard
from stele.session_guard.guard import LivenessTracker
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted

Judge = Callable[[SchemaAgreement, Image], SchemaAgreement]


def _judged(patch: Patch, judge: Judge) -> None:
    """Replace the answer of guards by what ``judge`` makes of it."""
    plain = guard.schema_agreement

    def judged(
        image: Image,
        acks: AckTable,
        tracker: LivenessTracker,
        now_s: float,
        epoch: int = 0,
        state_id_of: StateIdOf = unknown,
    ) -> SchemaAgreement:
        return judge(plain(image, acks, tracker, now_s, epoch, state_id_of), image)

    patch.function(plain, judged)


def _agreed_without(found: SchemaAgreement, image: Image, left_out: set[str]) -> SchemaAgreement:
    behind = tuple(name for name in found.behind if name not in left_out)
    return replace(found, behind=behind, agreed=image.epoch >= found.epoch and not behind)


@planted(STORY, rule="A1")
def agreement_lacks_a_member(patch: Patch) -> None:
    """A guard does not wait for a single member that is behind."""

    def without_one(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        return _agreed_without(found, image, {*found.behind[:1]})

    _judged(patch, without_one)


@planted(STORY, rule="A1")
def unknown_members_do_not_count(patch: Patch) -> None:
    """A guard that has just started, and does not know who is live, does not wait for the unknown."""

    def without_unknown(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        left_out = {m.node_id for m in found.members if m.liveness is Liveness.UNKNOWN}
        return _agreed_without(found, image, left_out)

    _judged(patch, without_unknown)


@planted(STORY, rule="A1")
def guards_behind_the_log_answer(patch: Patch) -> None:
    """A guard answers by the members of an image before the epoch, without one that joined since."""

    def at_once(found: SchemaAgreement, image: Image) -> SchemaAgreement:
        return replace(found, agreed=not found.behind)

    _judged(patch, at_once)


@planted(STORY, rule="A1")
def silence_of_the_broker_is_death(patch: Patch) -> None:
    """A guard that is cut off from the brokers declares the members down, and waits for none of them."""

    def by_the_clock(self: LivenessTracker, node_id: str, now_s: float) -> Liveness:
        known = self.by_node.get(node_id)
        is_late = known is not None and now_s - known.last_s > self.timeout_s
        return Liveness.DOWN if is_late else Liveness.UP

    patch.attribute(LivenessTracker, "liveness", by_the_clock)


@planted(STORY, rule="A1")
def heard_members_agree(patch: Patch) -> None:
    """A heartbeat is enough: a guard does not compare the epoch in it."""

    def heard(acks: AckTable, node: Any, epoch: int, state_id_of: StateIdOf = unknown) -> str:
        return "" if node.node_id in acks.by_node else "never sent a heartbeat"

    patch.attribute(guard, "why_not_applied", heard)
