"""Decisions that are too large for one record: parts, invisible until the record that commits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from stele.domain.commands import (
    Advance,
    AnyCommand,
    CreateKeyspace,
    Envelope,
    FoundCluster,
    Leave,
    Outcome,
    Rejection,
    RestrictCommits,
)
from stele.domain.decide import decide
from stele.domain.evolve import Delta
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.cdc import CdcGenerationWritten
from stele.domain.model.features import SettingChanged
from stele.domain.model.requests import Request, named
from stele.domain.model.ring import PlacementChanged
from stele.domain.model.transitions import TransitionOpened
from stele.domain.names import CommitMode, NodeState
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from stele.domain.staging import Part, PartsCommitted, StagingImage, unfolded
from stele.domain.topology.planning import GroupPlan, plan_group
from stele.domain.view import delta_view
from stele.log.fold import Fold
from stele.log.record_builder import in_parts
from tests.domain.history import join
from tests.log.driven import Driven
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import Writer, create, setting, winners

replace = msgspec.structs.replace
PART_BYTES = 600
KEYSPACE = CreateKeyspace("library", {"dc1": 2})
PLACEMENT = "dc1:2"
FREEZE = RestrictCommits(mode=CommitMode.FROZEN)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.log.record_builder.PART_BYTES", PART_BYTES)
    monkeypatch.setattr("stele.domain.model.ring.ROWS_PER_FACT", 10)
    monkeypatch.setattr("stele.domain.model.transitions.ROWS_PER_FACT", 3)


def two_nodes() -> Driven:
    cluster = Driven(create(MemoryPartition()))
    for index in (1, 2):
        cluster.ask(replace(join(index), cluster="blue"))
    cluster.run()
    return cluster


def asked(command: AnyCommand, name: str = "big") -> Envelope:
    return Envelope(request_id=named(name), command=command, actor="ada")


def chain_of(partition: MemoryPartition, envelope: Envelope) -> list[Epoch]:
    """Return the epochs of a command: its parts and their commit."""
    epochs = winners(partition)
    last = next(n for n, e in enumerate(epochs) if e.request_id == envelope.request_id)
    first = last
    while any(isinstance(fact, Part) for fact in epochs[first - 1].facts):
        first -= 1
    return epochs[first : last + 1]


def made_true(chain: Sequence[Epoch]) -> list[AnyFact]:
    """Return the facts of a chain as one record would carry them."""
    *parts, commit = chain
    staged = [fact for epoch in parts for part in epoch.facts for fact in cast("Part", part).facts]
    return [*staged, *commit.facts[1:]]


def test_large_decision_is_sent_in_parts_and_has_one_outcome() -> None:
    cluster = two_nodes()
    envelope = asked(KEYSPACE)
    assert cluster.submit(envelope) is None
    chain = chain_of(cluster.partition, envelope)
    *parts, commit = chain
    assert len(parts) >= 2
    assert all((p.request_id, p.command_digest, p.actor) == ("", bytes(16), "ada") for p in parts)
    assert commit.facts[0] == PartsCommitted(cast("Part", parts[0].facts[0]).staging_id, len(parts))
    (outcome,) = cluster.writer.answers[envelope.request_id]
    assert (outcome.applied, outcome.epoch) == (True, commit.epoch)
    assert cluster.image.placement_of("library") is not None
    assert cluster.image.staging == StagingImage()
    cluster.writer.submit(envelope)
    assert cluster.writer.answers[envelope.request_id] == [outcome, outcome]


def test_parts_carry_the_facts_of_a_single_record() -> None:
    """Any reader can repeat the decision: the facts are those of the commit's epoch."""
    cluster = two_nodes()
    envelope = asked(KEYSPACE)
    cluster.submit(envelope)
    chain = chain_of(cluster.partition, envelope)
    fold = Fold()
    for record in cluster.partition.records:
        before = fold.image
        if fold.offer(record.offset, record.value) == chain[-1]:
            break
    assert decide(before, envelope, chain[-1].at_ms) == tuple(made_true(chain))


def test_parts_take_effect_only_with_their_commit() -> None:
    cluster = two_nodes()
    envelope = asked(KEYSPACE)
    cluster.submit(envelope)
    chain, fold = chain_of(cluster.partition, envelope), Fold(EMPTY_FOR_FOLLOWERS)
    for record in cluster.partition.records:
        before = fold.image
        epoch = fold.offer(record.offset, record.value)
        if epoch in chain[:-1]:
            assert fold.image.schema == before.schema
            assert fold.image.ring == before.ring
            assert not Delta(before, epoch).touches(PlacementChanged)
            assert delta_view(before, fold.image, epoch).keys() <= {"topology"}
        elif epoch == chain[-1]:
            assert Delta(before, epoch).touches(PlacementChanged)
            shown = delta_view(before, fold.image, epoch)
            rows = shown["placements"][PLACEMENT]
            after = fold.image.ring.placements[PLACEMENT].rows
            assert rows == {"added": len(after), "removed": 0}
            assert [k["name"] for k in shown["keyspaces"]["added"]] == ["library"]
    assert state_hash(fold.image) == state_hash(cluster.image)


def test_freeze_between_parts_prevents_their_commit() -> None:
    cluster = two_nodes()
    other, envelope = Writer("second", cluster.partition), asked(KEYSPACE)
    other.meet()
    cluster.writer.submit(envelope)
    cluster.writer.land()
    other.meet()
    freeze = Envelope(request_id=named("f"), command=FREEZE, actor="ada", reason="why")
    other.submit(freeze)
    other.land()
    cluster.writer.settle()
    (outcome,) = cluster.writer.answers[envelope.request_id]
    assert (outcome.taken, cluster.image.placement_of("library")) == (False, None)
    assert cluster.image.staging != StagingImage()
    cluster.ask(RestrictCommits(mode=CommitMode.OPEN))
    cluster.submit(envelope)
    assert cluster.writer.answers[envelope.request_id][1].applied
    assert cluster.image.placement_of("library") is not None


def test_snapshot_with_staged_parts_equals_a_full_replay() -> None:
    cluster = two_nodes()
    envelope = asked(KEYSPACE)
    cluster.submit(envelope)
    cluster.ask(replace(join(3), cluster="blue"))
    chain, fold, staged = chain_of(cluster.partition, envelope), Fold(EMPTY_FOR_FOLLOWERS), 0
    for record in cluster.partition.records:
        epoch = fold.offer(record.offset, record.value)
        if epoch in chain[:-1]:
            staged += 1
            image = fold.image
            again = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
            assert again == image
            late = Fold(again, fold.next_offset)
            for later in cluster.partition.records[fold.next_offset :]:
                late.offer(later.offset, later.value)
            assert state_hash(late.image) == state_hash(cluster.image)
    assert staged >= 2


@pytest.mark.parametrize("landed", [0, 1, 2])
def test_chain_of_parts_that_lost_is_decided_again_as_a_whole(landed: int) -> None:
    """Another writer wins after this number of parts, which are then replaced."""
    cluster = two_nodes()
    one, two = cluster.writer, Writer("second", cluster.partition)
    envelope = asked(KEYSPACE)
    one.submit(envelope)
    for _ in range(landed):
        one.land()
    two.meet()
    assert len(two.pipeline.fold.image.staging.parts) == landed
    two.submit(setting("between"))
    two.land()
    one.settle()
    two.meet()
    chain = chain_of(cluster.partition, envelope)
    assert [cast("Part", e.facts[0]).index for e in chain[:-1]] == list(range(len(chain) - 1))
    assert one.answers[envelope.request_id][0].epoch == chain[-1].epoch
    assert one.pipeline.fold.image == two.pipeline.fold.image
    assert one.pipeline.fold.image.staging == StagingImage()


def test_chain_of_parts_is_refused_after_a_conflicting_winner() -> None:
    cluster = two_nodes()
    one, two = cluster.writer, Writer("second", cluster.partition)
    envelope = asked(KEYSPACE)
    one.submit(envelope)
    one.land()
    two.meet()
    two.submit(asked(KEYSPACE, "rival"))
    while two.sent:
        two.land()
    one.settle()
    two.meet()
    (outcome,) = one.answers[envelope.request_id]
    assert outcome.rejection is not None
    assert outcome.rejection.code == "keyspace_exists"
    assert two.pipeline.fold.image == one.pipeline.fold.image


def test_abandoned_parts_are_replaced_by_the_next() -> None:
    """Their writer died. The staging slot has no effect, and no rule clears it."""
    cluster = two_nodes()
    dying, other = cluster.writer, Writer("second", cluster.partition)
    dying.submit(asked(KEYSPACE))
    dying.land()
    dying.land()
    other.meet()
    other.submit(setting("small"))
    other.settle()
    assert len(other.pipeline.fold.image.staging.parts) == 2
    other.submit(asked(KEYSPACE, "again"))
    other.settle()
    assert other.pipeline.fold.image.placement_of("library") is not None
    assert other.pipeline.fold.image.staging == StagingImage()


def test_commands_behind_parts_in_flight_are_decided_on_them() -> None:
    cluster = two_nodes()
    writer = cluster.writer
    refused = asked(KEYSPACE, "same name")
    seen: list[Outcome] = []
    writer.linearizable_read(seen)
    for envelope in (asked(KEYSPACE), refused, setting("after")):
        writer.submit(envelope)
    writer.settle()
    assert len(seen) == 1
    assert writer.answers[named("big")][0].applied
    assert writer.answers[named("after")][0].applied
    rejection = writer.answers[refused.request_id][0].rejection
    assert rejection is not None
    assert rejection.code == "keyspace_exists"


def test_joins_and_leaves_are_sent_in_parts() -> None:
    cluster = two_nodes()
    cluster.submit(asked(KEYSPACE))
    cluster.ask(replace(join(3), cluster="blue"))
    cluster.run()
    assert cluster.image.membership.nodes["n3"].state is NodeState.NORMAL
    cluster.ask(Leave("n1"))
    cluster.run()
    assert cluster.image.membership.nodes["n1"].state is NodeState.LEFT
    in_parts_too = [e for e in winners(cluster.partition) if e.command == "advance"]
    assert any(isinstance(fact, Part) for epoch in in_parts_too for fact in epoch.facts)
    fold = Fold(EMPTY_FOR_FOLLOWERS)
    for record in cluster.partition.records:
        before = fold.image
        epoch = fold.offer(record.offset, record.value)
        if epoch is not None and Delta(before, epoch).touches(TransitionOpened):
            for transition in fold.image.topology.open():
                assert {*transition.plans} == {*before.schema.replications()}
    assert state_hash(fold.image) == state_hash(cluster.image)


def test_operation_in_parts_is_planned_once_and_equals_a_whole_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = two_nodes()
    cluster.submit(asked(KEYSPACE))
    planned = list[list[Request]]()

    def counted(image: Image, requests: list[Request]) -> GroupPlan:
        planned.append(requests)
        return plan_group(image, requests)

    monkeypatch.setattr("stele.domain.topology.decide.plan_group", counted)
    submitted = list[Envelope]()
    submit = cluster.submit

    def noted(envelope: Envelope) -> Rejection | None:
        submitted.append(envelope)
        return submit(envelope)

    monkeypatch.setattr(cluster, "submit", noted)
    cluster.ask(replace(join(3), cluster="blue"))
    cluster.run()
    opening = next(e for e in submitted if isinstance(e.command, Advance) and e.command.open)
    *parts, commit = chain_of(cluster.partition, opening)
    assert parts and len(planned) == 1
    fold = Fold()
    for record in cluster.partition.records:
        before = fold.image
        if fold.offer(record.offset, record.value) == commit:
            break
    unstaged = replace(before, staging=StagingImage())
    assert decide(unstaged, opening, commit.at_ms) == (*made_true([*parts, commit]),)
    assert len(planned) == 2


def test_large_cdc_generation_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.domain.rules.cdc.STREAMS_PER_FACT", 10)
    cluster = two_nodes()
    parts = [f for e in winners(cluster.partition) for f in e.facts if isinstance(f, Part)]
    staged = [f for part in parts for f in part.facts if isinstance(f, CdcGenerationWritten)]
    assert len(staged) >= 2
    newest = cluster.image.cdc.newest()
    assert newest is not None and {f.epoch for f in staged} == {newest.epoch}
    assert newest.fits({*cluster.image.membership.ring_tokens()})
    assert winners(cluster.partition)[newest.epoch - 1].command == "advance", "the commit's epoch"


def test_second_decision_with_fewer_parts_sends_an_empty_part() -> None:
    large = tuple(SettingChanged(f"s{n}", "x" * 300) for n in range(4))
    asked_for: list[int] = []

    def smaller(parts: int) -> tuple[AnyFact, ...]:
        asked_for.append(parts)
        return large[:3]

    found = in_parts(large, "id", smaller, PART_BYTES)
    assert not isinstance(found, Rejection)
    parts, commit = found
    assert asked_for == [3]
    assert [part.facts for part in parts] == [(large[0],), (large[1],), ()]
    assert commit == (PartsCommitted("id", 3), large[2])
    image = StagingImage("id", tuple(part.facts for part in parts))
    assert [*unfolded(image, commit)] == [*large[:2], PartsCommitted("id", 3), large[2]]


def test_founding_is_never_split_into_parts() -> None:
    writer = Writer("first", MemoryPartition())
    writer.submit(asked(FoundCluster("b" * 64 + "/" + "u" * PART_BYTES)))
    writer.settle()
    assert writer.answers[named("big")][0].epoch == 1
