"""Rules for mixed releases, checked by the releases that the run gave to its processes.

The checks use none of production's rules on builds, required features or support.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from stele.domain.commands import AnnounceNode, AnnounceService, Envelope, Join, Outcome, Replace
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.messages import Ack
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.membership import NodeChanged
from stele.domain.names import NodeState, RequestKind
from stele.domain.staging import Part, PartsCommitted
from stele.log.codec import decode_report
from stele_simulator.kernel import us
from stele_simulator.processes.releases import FEATURE, NEW_FACT, UNKNOWN, is_new

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

RULE: Final = "releases"
TOLD_S: Final = 60.0
"""Time until a running process has announced its release. Faults that prevent this are shorter."""
SUPPORTED: Final = "feature_not_supported"
OFF: Final = ("feature_not_enabled", UNKNOWN)
"""Rejections by metadata-logs of the newer and of the older release."""
WHAT_TO_DO: Final = ("Upgrade this process", "with a newer release", "Upgrade its software")
"""Advice from a reader, from a process with enabled features on its disk, and from the log when it rejects an
announcement: such a process had read the end before the feature was enabled.
"""
PREVIOUS: Final = slice(10, 26)
"""Where a record says which state it follows."""


class ReleaseWitness:
    """Sees the winners, what processes say, and which release each of them has."""

    def __init__(self, world: "World") -> None:
        self.is_on = bool(world.scenario.upgrades)
        """There are two releases."""
        self.was_told = False
        """Whether a winner enabled the feature, or was a part of that, even if it was lost since."""
        self._staged: list[AnyFact] = []
        self._world = world
        self._enabled = set[bytes]()
        """The states behind a winner that enabled it."""
        self._heard: dict[str, dict[bytes, int]] = {}
        """By node: the states that it acknowledged as one of the newer release, with their epochs."""
        self._row_changed_us: dict[str, int] = {}
        """By node: time of the last announcement in the log."""

    def is_enabled(self) -> bool:
        """In the history that the topic holds now."""
        return self._world.witness.head in self._enabled

    def demand(self, holds: bool, expected: str, found: str) -> None:
        """Raises Violation."""
        self._world.demand(holds, RULE, expected, found)

    # -- winners --

    def changed(self, before: Image, after: Image, epoch: Epoch) -> None:
        """One more winner."""
        was_on, said, made = before.state_id in self._enabled, *self._facts(epoch)
        uses = any(isinstance(fact, NEW_FACT) for fact in said)
        tells, enables = any(map(_enables, said)), any(map(_enables, made))
        if was_on or enables:
            self._enabled.add(after.state_id)
        if not self.is_on:
            return
        for fact in made:
            if isinstance(fact, NodeChanged):
                self._row_changed_us[fact.node.node_id] = self._world.kernel.now_us
        self.demand(
            was_on or not uses,
            f"epoch {epoch.epoch} brings nothing of the newer release before {FEATURE} is enabled",
            f"it is {epoch.command}",
        )
        self.demand(
            (FEATURE in epoch.required_features) == (uses or tells),
            f"epoch {epoch.epoch}, {epoch.command}, requires {FEATURE}: {uses or tells}",
            f"it requires {epoch.required_features}",
        )
        self.was_told = self.was_told or tells
        if enables and not was_on:
            self._world.trace(f"{FEATURE} is enabled in epoch {epoch.epoch}")
            self._all_support(before, epoch)
        self._nobody_is_past_it()

    def _facts(self, epoch: Epoch) -> tuple[list[AnyFact], list[AnyFact]]:
        """Return the facts of a record, with parts opened and commits applied."""
        said, made = list[AnyFact](), list[AnyFact]()
        for fact in epoch.facts:
            if isinstance(fact, Part):
                self._staged = [*(self._staged if fact.index else ()), *fact.facts]
                said += fact.facts
            else:
                made += self._staged if isinstance(fact, PartsCommitted) else (fact,)
                said.append(fact)
        return said, made

    def _all_support(self, before: Image, epoch: Epoch) -> None:
        what = f"{FEATURE} is enabled in epoch {epoch.epoch} when all support it"
        lacking = self._lacking(before)
        self.demand(not lacking, what, f"{', '.join(lacking)} told that it does not")
        asked = min(
            request.submitted_epoch
            for request in before.requests.unfinished()
            if request.kind is RequestKind.ENABLE_FEATURES
        )
        line = self._world.witness.line(before.state_id)
        for name, row in before.membership.normal().items():
            heard = self._heard.get(name, {})
            self.demand(
                row.excluded_since > 0
                or self._is_late(name)
                or any(at >= asked and state_id in line for state_id, at in heard.items()),
                f"{what}, and has acknowledged epoch {asked} or a later one as one that does",
                f"{name} has not",
            )
        now_us = self._world.kernel.now_us
        if self._world.witness.quiet(TOLD_S):
            late = [
                machine.name
                for machine in self._world.machines.values()
                if not is_new(machine.build)
                and machine.is_up
                and now_us - machine.started_us > us(TOLD_S)
            ]
            self.demand(not late, what, f"{', '.join(late)} of the older release runs for long")

    def _is_late(self, node_id: str) -> bool:
        """Return whether its process is of the older release again, while the log still has the newer
        announcement, which arrived after its start.
        """
        told_us = self._row_changed_us.get(node_id, 0)
        return any(
            node.node_id == node_id and not is_new(node.build) and told_us > node.started_us
            for node in self._world.nodes
        )

    def _lacking(self, image: Image) -> list[str]:
        """Return members, joining nodes and services whose announced release lacks the feature."""
        rows = image.membership.nodes.values()
        nodes = [
            row.node_id
            for row in rows
            if row.state is not NodeState.LEFT
            and not row.excluded_since
            and FEATURE not in row.supported_features
        ]
        services = image.services.services.values()
        return sorted(nodes) + sorted(
            each.service_id for each in services if FEATURE not in each.supported_features
        )

    # -- processes --

    def _nobody_is_past_it(self) -> None:
        for machine in self._world.machines.values():
            if not is_new(machine.build) and machine.alive and machine.image is not None:
                self.acts(machine, machine.image.state_id, "its image")

    def acts(self, machine: "Machine", state_id: bytes, what: str) -> None:
        """Somebody says or does something by this state."""
        if is_new(machine.build):
            return
        if state_id in self._enabled:
            self.demand(
                False,
                f"{machine.name}, which is of the older release, goes nowhere past {FEATURE}",
                f"{what} is of epoch {self._world.witness.epoch_of(state_id)}",
            )

    def appends(self, machine: "Machine", value: bytes) -> None:
        """A writer decides on the state before its record."""
        self.acts(machine, value[PREVIOUS], "what its record follows")

    def acknowledged(self, machine: "Machine", ack: Ack) -> None:
        self.acts(machine, ack.state_id, "what it acknowledges")
        if is_new(machine.build):
            self._heard.setdefault(ack.node_id, {})[ack.state_id] = ack.epoch
            return
        if self._is_late(ack.node_id):
            return
        image = self._world.witness.image_at(ack.state_id)
        row = None if image is None else image.node(ack.node_id)
        self.demand(
            row is None or row.state is NodeState.LEFT or FEATURE not in row.supported_features,
            f"{ack.node_id}, which is of the older release, is heard once the log says so",
            f"at epoch {ack.epoch} it says that {ack.node_id} supports {FEATURE}",
        )

    def asks(self, machine: "Machine", envelope: Envelope) -> None:
        """Check that a process announces its own release."""
        command = envelope.command
        if isinstance(command, AnnounceNode | AnnounceService | Join | Replace):
            self.demand(
                (FEATURE in command.supported_features) == is_new(machine.build),
                f"{machine.name} says that it supports {FEATURE}: {is_new(machine.build)}",
                f"it tells of {command.supported_features}",
            )

    def sent(self, machine: "Machine", topic: str, value: bytes) -> None:
        """Check messages between processes beside the log."""
        if machine.image is None:
            return
        self.acts(machine, machine.image.state_id, f"what it sends to {topic}")
        if topic.endswith(".reports") and decode_report(value).sources:
            self.demand(
                machine.image.state_id in self._enabled,
                f"reports name sources once {FEATURE} is enabled",
                f"{machine.name} does so at epoch {machine.image.epoch}",
            )

    def has_stopped(self, machine: "Machine") -> bool:
        """It is of the older release and went no further, where that was enabled, and says what to do."""
        if is_new(machine.installed):
            return False
        said = str(machine.failure or "") or machine.ended_by
        if FEATURE not in said:
            return False
        self.demand(
            self.was_told,
            f"nobody stops for want of {FEATURE} before it is enabled",
            f"{machine.name}: {said}",
        )
        self.demand(
            any(text in said for text in WHAT_TO_DO),
            f"{machine.name}, which has stopped for want of {FEATURE}, says what to do",
            said,
        )
        return True

    # -- answers --

    def answered(self, outcome: Outcome) -> None:
        """To enable it is refused while somebody lacks it, and they are named."""
        before = self._before(outcome)
        if before is None:
            return
        lacking, rejection = self._lacking(before), outcome.rejection
        told = _named(rejection.details) if rejection and rejection.code == SUPPORTED else []
        self.demand(
            told == lacking and outcome.applied == (not lacking),
            f"who asks for {FEATURE} at epoch {before.epoch} is told who lacks it: {lacking}",
            f"{told} are named, and it is {'taken' if outcome.applied else 'refused'}",
        )

    def used(self, outcome: Outcome) -> None:
        """Check that anything new is rejected before the feature is enabled."""
        before = self._before(outcome)
        if before is None:
            return
        code = "" if outcome.rejection is None else outcome.rejection.code
        self.demand(
            (code in OFF) == (before.state_id not in self._enabled) or code == "unknown_service",
            f"a command of the newer release is refused while {FEATURE} is off",
            f"at epoch {before.epoch} it is {code or 'applied'}",
        )

    def _before(self, outcome: Outcome) -> Image | None:
        """The state on which it was decided."""
        known = self._world.witness.records.get(outcome.state_id)
        return None if known is None else self._world.witness.image_at(known.previous)


def _enables(fact: AnyFact) -> bool:
    return isinstance(fact, FeaturesEnabled) and FEATURE in fact.features


def _named(details: Mapping[str, str]) -> list[str]:
    listed: Iterable[str] = (details["nodes"], details["services"])
    return [name for names in listed for name in sorted(filter(None, names.split(",")))]
