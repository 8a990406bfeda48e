"""Properties of every domain: empty round trip, image -> facts -> image, delta applied == image built.

Images come from random histories, in which nodes and keyspaces are added and removed and steps are rolled
back.
"""

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest

from stele.domain.base import Fact
from stele.domain.commands import (
    AnnounceReader,
    AnnounceService,
    AnyCommand,
    AskSnapshot,
    CreateTable,
    DropTable,
    EnableFeatures,
    ForgetReader,
    ForgetReplica,
    ForgetService,
    Noop,
    RestrictCommits,
    SetSetting,
    SwitchBalancingOff,
    SwitchBalancingOn,
    WithdrawSnapshot,
)
from stele.domain.evolve import Delta, apply_facts, evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, Image
from stele.domain.names import CommitMode
from stele.domain.recovery import NewLog, Why, recovered
from stele.domain.registry import DECISIONS, DOMAINS, FACTS
from stele.domain.registry_entry import Domain
from stele.domain.snapshot import (
    domain_hashes,
    facts_to_image,
    image_to_facts,
    requests_hash,
    state_hash,
)
from stele.domain.view import diff, epoch_view, view
from stele.log.codec import decode_epoch, encode_epoch
from tests.coordinator.random_runs import RandomRun
from tests.domain.archive.announced import replica, snapshot, truncate
from tests.domain.epochs import as_asked_by_uuid, remembered

SEEDS = (3, 11, 54)
every_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)


class Story(NamedTuple):
    """Epochs of a history, with the images before and after all of them."""

    epochs: list[Epoch]
    images: list[Image]


@cache
def histories() -> tuple[Story, ...]:
    found = []
    for seed in SEEDS:
        run = RandomRun(seed)
        run.go(20)
        run.world.apply(SetSetting("colour", "red"))
        run.world.apply(SetSetting("colour", ""))
        run.world.apply(SetSetting("shape", "round"))
        run.world.apply(EnableFeatures(()))
        run.world.apply(SwitchBalancingOff(until_ms=2**41, abort_at_ms=2**40))
        run.world.apply(SwitchBalancingOn())
        for instance in ("c-1", "c-2"):
            service_id = f"coordinator/{instance}"
            run.world.apply(AnnounceService(service_id=service_id, supported_features=("x",)))
        run.world.apply(ForgetService("coordinator/c-1"))
        run.world.apply(RestrictCommits(mode=CommitMode.FROZEN))
        run.world.apply(RestrictCommits(mode=CommitMode.OPEN))
        run.world.apply(Noop())
        _keep_archive(run)
        run.calm()
        for table in run.world.image.schema.with_tablets():
            name = run.world.image.schema.full_name(table)
            run.world.apply(SwitchBalancingOff(name))
            run.world.apply(SwitchBalancingOff(name.partition(".")[0], until_ms=2**41))
            run.world.apply(CreateTable(f"{name}_beside", colocated_with=name))
            run.world.apply(CreateTable(f"{name}_too", colocated_with=name))
            run.world.apply(DropTable(f"{name}_too"))
        run.calm()
        run.world.apply(SwitchBalancingOff())
        run.world.apply(RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada"))
        epochs = as_asked_by_uuid(run.world.epochs)
        epochs.append(recovery(remembered(epochs)[-1]))
        found.append(Story(epochs, remembered(epochs)))
    return tuple(found)


def _keep_archive(run: RandomRun) -> None:
    """Let one of the members diverge, others join, leave and read, and truncate the log."""
    world = run.world
    run.archive()
    run.archive()
    members, epoch = world.image.archive.members(), world.image.epoch
    said: tuple[AnyCommand, ...] = (
        *(snapshot(name, epoch - 1) for name in members),
        *(snapshot(name, epoch) for name in members),
        truncate(epoch - 1),
        *(replica(name, rack=name) for name in ("c-1", "c-2")),
        *(snapshot("c-1", epoch, content="wrong"), snapshot("c-2", epoch)),
        WithdrawSnapshot("c-2", epoch),
        *(AnnounceReader("spark", epoch), AnnounceReader("other", epoch), ForgetReader("other")),
        AskSnapshot(),
        ForgetReplica(replica_id="c-2"),
    )
    for each in said:
        refused = world.apply(each)
        assert refused is None, refused


def recovery(image: Image) -> Epoch:
    """Recover the log after the image."""
    greatest = bytes([255] * 16)
    new = NewLog(log_id=greatest, state_id=greatest, topic_id="anew", at_ms=0)
    found = recovered(image, new, Why(actor="ada", reason="it was lost"), image.epoch + 2)
    assert isinstance(found, Epoch)
    return found


def images() -> list[Image]:
    return [image for story in histories() for image in story.images]


def built(domain: Domain, facts: Any) -> Any:
    image = domain.empty
    for fact in facts:
        image = domain.apply[type(fact)](image, fact)
    return image


# KRaft's three questions.


@every_domain
def test_empty_image_is_its_own_snapshot(domain: Domain) -> None:
    assert built(domain, domain.to_facts(domain.empty)) == domain.empty
    assert getattr(EMPTY, domain.name) == domain.empty


@every_domain
def test_every_image_equals_its_snapshot(domain: Domain) -> None:
    for image in images():
        part = getattr(image, domain.name)
        again = built(domain, domain.to_facts(part))
        assert again == part
        assert list(domain.to_facts(again)) == list(domain.to_facts(part))


@pytest.mark.parametrize(
    "domain", [d for d in DOMAINS if d.name != "decided"], ids=lambda domain: domain.name
)
def test_image_with_a_delta_applied_equals_the_built_image(domain: Domain) -> None:
    """The memory of decided requests is left out: it also includes the request of the epoch itself."""
    for story in histories():
        for (before, after), epoch in zip(pairwise(story.images), story.epochs, strict=True):
            part = getattr(before, domain.name)
            touched = False
            for fact in epoch.facts:
                if type(fact) in domain.apply:
                    part, touched = domain.apply[type(fact)](part, fact), True
            assert part == getattr(after, domain.name)
            assert touched or getattr(before, domain.name) is getattr(after, domain.name)
            assert Delta(before, epoch).touches(*domain.apply) == touched


# Hashes: equal for equal images, whatever the history.


@every_domain
def test_hash_depends_only_on_the_image(domain: Domain) -> None:
    seen: dict[int, Any] = {}
    for image in images():
        part = getattr(image, domain.name)
        number = domain.hash_of(part)
        assert 0 <= number < 2**128
        assert number == domain.hash_of(built(domain, domain.to_facts(part)))
        assert seen.setdefault(number, part) == part, "two images share a hash"


def test_different_states_have_different_hashes() -> None:
    for story in histories():
        assert len({state_hash(image) for image in story.images}) == len(story.images)


def test_domain_hashes_show_where_two_states_differ() -> None:
    for story in histories():
        for before, after in pairwise(story.images):
            one, two = domain_hashes(before), domain_hashes(after)
            for name in one:
                differ = getattr(before, name) != getattr(after, name)
                assert differ == (one[name] != two[name])


def test_snapshot_and_tail_equal_full_replay() -> None:
    for story in histories():
        for start in range(0, len(story.images), 7):
            image = story.images[start]
            image = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
            for epoch in story.epochs[start:]:
                image = evolve(image, epoch)
            assert image == story.images[-1]
            assert state_hash(image) == state_hash(story.images[-1])


def test_snapshot_of_a_snapshot_is_the_same_state() -> None:
    for story in histories():
        facts = image_to_facts(story.images[-1])
        again = facts_to_image(facts, story.images[-1].epoch, story.images[-1].state_id)
        assert msgspec.json.encode(view(again)) == msgspec.json.encode(view(story.images[-1]))
        assert apply_facts(story.images[-1], ()) is story.images[-1]


def test_follower_has_the_same_state_without_decided_requests() -> None:
    for story in histories():
        follower = EMPTY_FOR_FOLLOWERS
        for epoch in story.epochs:
            follower = evolve(follower, epoch)
        assert follower.decided is None
        assert state_hash(follower) == state_hash(story.images[-1])
        again = facts_to_image(image_to_facts(follower), follower.epoch, follower.state_id)
        assert again == follower
        assert requests_hash(follower) != requests_hash(story.images[-1])


def test_decided_requests_are_part_of_the_snapshot() -> None:
    for story in histories():
        image = story.images[-1]
        again = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
        assert requests_hash(again) == requests_hash(image)
        decided = again.decided
        assert decided is not None
        assert decided.candidates(story.epochs[3].request_id) == (4,)


# Total: every state can be shown and compared.


@every_domain
def test_every_image_can_be_shown_and_compared(domain: Domain) -> None:
    for story in histories():
        for before, after in pairwise(story.images):
            one, two = getattr(before, domain.name), getattr(after, domain.name)
            shown, changed = domain.view_of(two), domain.diff_of(one, two)
            assert msgspec.json.encode(shown, enc_hook=dict) and msgspec.json.encode(changed)
            assert msgspec.json.encode(domain.diff_of(two, two)) == msgspec.json.encode(
                domain.diff_of(one, one)
            )
            if domain.view_of(one) != shown:
                assert changed != domain.diff_of(one, one), (
                    "a change that the difference does not show"
                )


def test_domains_share_no_section_of_the_view() -> None:
    sections = [name for domain in DOMAINS for name in domain.view_of(domain.empty)]
    assert len({*sections}) == len(sections)
    assert not {*sections} & {"epoch", "state_id", "hash"}


def test_every_epoch_is_preserved_by_encoding_and_can_be_shown() -> None:
    for story in histories():
        for epoch in story.epochs:
            assert decode_epoch(encode_epoch(epoch)) == epoch
            msgspec.json.encode(epoch_view(epoch))
        msgspec.json.encode(diff(EMPTY, story.images[-1]))


# Every fact has one domain, in the code and in the schema.


def test_every_fact_is_in_exactly_one_domain() -> None:
    homes = [fact for domain in DOMAINS for fact in domain.apply]
    assert len({*homes}) == len(homes)
    assert {*homes} == {*Fact.__subclasses__()} == {*FACTS}
    tags = [fact.__struct_config__.tag for fact in Fact.__subclasses__()]
    assert len({*tags}) == len(tags)


def test_every_command_is_decided_by_exactly_one_domain() -> None:
    deciders = [command for domain in DOMAINS for command in domain.decide]
    assert len({*deciders}) == len(deciders)
    assert {*deciders} == {*DECISIONS}
