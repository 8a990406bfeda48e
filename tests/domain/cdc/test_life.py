"""The life of a CDC generation in the log: sizes, pieces, times, publishing and forgetting."""

import pytest

from stele.domain.commands import Envelope, FoundCluster, NewCdcGeneration, SetSetting
from stele.domain.context import Context, DecisionCache
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.cdc import (
    CDC_MARGIN_S,
    CDC_RETENTION_S,
    CdcGenerationCommitted,
    CdcGenerationWritten,
    ForgetCdcGeneration,
    PublishCdcGeneration,
)
from stele.domain.model.cdc_streams import CdcImage
from stele.domain.rules import cdc
from stele.domain.rules.cdc import STREAMS_PER_FACT, committed, written
from stele.domain.snapshot import content_hash
from stele.log.codec import fact_size
from tests.coordinator.world import World, three_nodes
from tests.domain.epochs import AT_MS, LOG_ID, History, code_of

MARGIN_MS = 1000 * CDC_MARGIN_S.default
RETENTION_MS = 1000 * CDC_RETENTION_S.default


def context(image: Image, at_ms: int = AT_MS) -> Context:
    envelope = Envelope(request_id="r", command=FoundCluster())
    return Context(image, envelope, at_ms, apply_facts, content_hash, DecisionCache())


def founded() -> Image:
    history = History()
    assert history.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    return history.image


def publish(world: World) -> str:
    generation = world.image.cdc.newest()
    assert generation is not None
    refused = world.apply(PublishCdcGeneration(1, generation.generation_id))
    return "" if refused is None else refused.code


def forget(world: World, generation_id: str) -> str:
    refused = world.apply(ForgetCdcGeneration(1, generation_id))
    return "" if refused is None else refused.code


def test_generation_of_300_nodes_of_256_tokens_costs_16_bytes_per_range() -> None:
    image = founded()
    facts = [*written(context(image), "t", range(300 * 256))]
    assert len(facts) == 2, "two pieces of at most 1 MiB"
    assert sum(map(fact_size, facts)) < 16 * 300 * 256 + 400
    after = apply_facts(image, facts)
    (generation,) = after.cdc.generations.values()
    assert len(generation.streams) == 16 * 300 * 256
    assert [*cdc.to_facts(after.cdc)] == facts


def test_generation_in_pieces_folds_to_the_same_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = founded()
    whole = apply_facts(image, written(context(image), "t", range(100)))
    monkeypatch.setattr(cdc, "STREAMS_PER_FACT", 7)
    pieces = [*written(context(image), "t", range(100))]
    assert len(pieces) == 15
    assert apply_facts(image, pieces) == whole
    assert STREAMS_PER_FACT * 16 == 2**20


def test_generation_id_is_deterministic_and_unique() -> None:
    image = founded()
    later = apply_facts(image, ())
    assert [*written(context(image), "t", (1,))] == [*written(context(later), "t", (1,))]
    ids = {next(written(context(i), t, (1,))).generation_id for i in (image,) for t in "tu"}
    assert len(ids) == 2


def test_generation_starts_a_margin_after_the_epoch_and_all_others() -> None:
    world = three_nodes()
    before = world.image.cdc.committed()
    assert before[0].since_ms == AT_MS + MARGIN_MS
    times = [generation.since_ms for generation in before]
    assert times == sorted({*times})
    world.history.at_ms -= 120_000  # the clock of the writer goes back, that of the log does not
    world.add("a2")
    world.run()
    newest = world.image.cdc.newest()
    assert newest is not None and newest.since_ms >= max(log_ms(world) + MARGIN_MS, times[-1] + 1)


def log_ms(world: World) -> int:
    """Return the time of the commit's epoch, without the few epochs after it."""
    state_id = world.images[world.image.cdc.committed()[-1].committed_epoch - 2].state_id
    return int.from_bytes(state_id[:6], "big")


def test_generation_from_a_clock_far_ahead_is_dropped_by_the_next() -> None:
    world = three_nodes()
    world.history.at_ms += 400 * 86_400_000
    world.add("a2")
    world.run()
    ahead = world.image.cdc.newest()
    assert ahead is not None and ahead.since_ms > AT_MS + 300 * 86_400_000
    world.history.at_ms = AT_MS
    assert world.apply(NewCdcGeneration(), "again") is None
    world.run()
    newest = world.image.cdc.newest()
    assert newest is not None and newest.generation_id != ahead.generation_id
    assert newest.since_ms <= AT_MS + 2 * MARGIN_MS
    assert ahead.generation_id not in world.image.cdc.generations


def test_margin_is_a_setting() -> None:
    world = three_nodes()
    assert world.apply(SetSetting(CDC_MARGIN_S.name, "1000")) is None
    world.add("a2")
    world.run()
    newest = world.image.cdc.newest()
    assert newest is not None and newest.since_ms == AT_MS + 1_000_000
    assert code_of(world.apply(SetSetting(CDC_MARGIN_S.name, "soon"))) == "bad_setting"


def test_generation_overtaken_by_a_later_one_is_dropped() -> None:
    image = founded()
    facts: list[AnyFact] = [
        CdcGenerationWritten("first", "one", 5, bytes(16)),
        CdcGenerationWritten("second", "two", 6, bytes(32)),
        CdcGenerationCommitted("second", 1000, 7),
    ]
    image = apply_facts(image, facts)
    after = apply_facts(image, committed(context(image), image, "one"))
    assert {*after.cdc.generations} == {"second"}


def test_publishing_waits_for_the_fence_of_the_committing_version() -> None:
    world = three_nodes()
    world.add("a2")
    world.until(lambda: bool(world.image.cdc.unpublished()), "a generation is committed")
    assert not world.fenced()
    assert publish(world) == "overtaken"
    world.until(lambda: not world.image.cdc.unpublished(), "it is published")
    assert publish(world) == "overtaken", "once is enough"
    assert all(generation.published for generation in world.image.cdc.committed())


def test_generation_is_forgotten_after_the_retention_of_its_successor() -> None:
    world = three_nodes()
    world.add("a2")
    world.run()
    first, second = world.image.cdc.committed()
    assert forget(world, first.generation_id) == "cdc_generation_in_use"
    world.history.at_ms = second.since_ms + RETENTION_MS
    assert forget(world, first.generation_id) == "cdc_generation_in_use"
    world.history.at_ms += 1
    assert forget(world, second.generation_id) == "cdc_generation_in_use", "it is the last"
    world.until(lambda: len(world.image.cdc.generations) == 1, "the coordinator forgets it")
    assert world.image.cdc.committed() == [second]
    assert world.events.count("append forget_cdc_generation") == 1


def test_commands_of_an_older_term_are_refused() -> None:
    world = three_nodes()
    world.replace_brain()
    world.tick()
    assert publish(world) == "stale_term"
    assert forget(world, "any") == "stale_term"


def test_diff_shows_counts_instead_of_streams() -> None:
    world = three_nodes()
    shown = cdc.DOMAIN.diff_of(CdcImage(), world.image.cdc)["cdc_generations"]["added"]
    assert [row["streams"] for row in shown] == [6]
