"""A recovered log continues under another id, and the choice of its history is checked first."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from stele.domain.base import Rejection
from stele.domain.commands import CreateKeyspace, Envelope
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.model.cluster import EpochStatus, Incarnation, LogRecovered, epoch_status
from stele.domain.model.schema import KeyspaceChanged
from stele.domain.override_facts import LOST_VERSIONS, floor_after
from stele.domain.recovery import (
    GivenUp,
    HistoryChoice,
    HistorySource,
    NewLog,
    Why,
    choose,
    recovered,
    recovery_of,
    to_compare,
    unagreed,
)
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from stele.domain.view import diff, view
from stele.log.codec import decode_epoch, encode_epoch
from tests.domain.epochs import LOG_ID
from tests.domain.history import join, three_nodes

SECOND, THIRD = (bytes([number] * 16) for number in (0xC0, 0xC1))
WHY = Why(actor="ada", reason="the brokers burnt down", origin="console")

replace = msgspec.structs.replace


def new_log(log_id: bytes = SECOND, state_id: bytes = b"\xff" * 15 + b"\x01") -> NewLog:
    return NewLog(log_id=log_id, state_id=state_id, topic_id="anew", at_ms=7)


def record(image: Image, new: NewLog | None = None, known_epoch: int = 0) -> Epoch:
    found = recovered(image, new or new_log(), WHY, known_epoch)
    assert isinstance(found, Epoch)
    return found


@pytest.fixture
def image() -> Image:
    return three_nodes()[0].image


def test_recovered_log_continues_after_the_last_epoch_under_a_new_id(image: Image) -> None:
    found = record(image, known_epoch=image.epoch + 3)
    after = evolve(image, found)
    assert (after.epoch, after.log_id, after.topic_id) == (image.epoch + 1, SECOND, "anew")
    assert (found.witness_epoch, found.witness_state_id) == (image.epoch, image.state_id)
    assert (found.actor, found.reason, found.origin) == ("ada", WHY.reason, "console")
    (before,) = after.founding.incarnations
    assert (before.log_id, before.topic_id) == (LOG_ID.hex(), image.topic_id)
    assert (before.last_epoch, before.state_id) == (image.epoch, image.state_id.hex())
    assert before.known_epoch == image.epoch + 3
    assert replace(after, epoch=0, state_id=b"", founding=image.founding) == replace(
        image, epoch=0, state_id=b""
    )
    assert recovery_of(decode_epoch(encode_epoch(found))) == found.facts[0]


def test_log_recovered_twice_equals_its_snapshot(image: Image) -> None:
    once = evolve(image, record(image))
    twice = evolve(once, record(once, new_log(THIRD, b"\xff" * 16)))
    again = facts_to_image(image_to_facts(twice), twice.epoch, twice.state_id)
    assert again.founding == twice.founding
    assert state_hash(again) == state_hash(twice)
    assert [before.log_id for before in again.founding.incarnations] == [LOG_ID.hex(), SECOND.hex()]
    assert again.log_id == THIRD
    shown = msgspec.convert(view(again)["incarnations"], tuple[Incarnation, ...])
    assert shown == twice.founding.incarnations
    assert diff(image, again)["cluster"]["log_id"] == {
        "before": LOG_ID.hex(),
        "after": THIRD.hex(),
    }


def test_recovery_with_smaller_ids_or_of_an_empty_log_is_refused(image: Image) -> None:
    for new in (new_log(LOG_ID), new_log(bytes(16)), new_log(state_id=image.state_id)):
        refused = recovered(image, new, WHY)
        assert isinstance(refused, Rejection) and refused.code == "not_later"
    refused = recovered(EMPTY, new_log(), WHY)
    assert isinstance(refused, Rejection) and refused.code == "nothing_to_recover"


def test_inconsistent_record_is_no_recovery(image: Image) -> None:
    found = record(image)
    (fact,) = found.facts
    assert isinstance(fact, LogRecovered)
    for wrong in (
        replace(found, facts=()),
        replace(found, facts=(fact, fact)),
        replace(found, epoch=found.epoch + 1),
        replace(found, prev_state_id=bytes(16)),
        replace(found, log_id=THIRD),
        replace(found, facts=(replace(fact, from_log_id=THIRD.hex()),)),
    ):
        assert recovery_of(wrong) is None


def test_ids_created_in_the_same_epoch_differ_after_a_recovery(image: Image) -> None:
    """A keyspace created in a lost epoch, and created again, must not find the data of the lost one."""
    lost = replace(image, epoch=image.epoch + 1)
    envelope = Envelope(request_id="", command=CreateKeyspace("again", {"dc1": 3}))
    ids = set[str]()
    for each in (lost, evolve(image, record(image))):
        facts = decide(each, envelope, 0)
        assert not isinstance(facts, Rejection)
        ids |= {fact.keyspace.keyspace_id for fact in facts if isinstance(fact, KeyspaceChanged)}
    assert len(ids) == 2


def test_versions_of_a_recovered_log_exceed_all_lost_versions() -> None:
    """A data id holds the version of the truncation, and a token holds the version at its creation."""
    history, world = three_nodes()
    before = history.image.topology.version
    history.recover(SECOND, known_epoch=history.image.epoch + 2_000_000)
    floor = history.image.founding.version_floor
    assert floor >= before + 2_000_000
    assert floor_after(before, 7, 2_000_000) == before + 2_000_000
    assert history.image.topology.version == before, "what is not changed keeps its version"
    assert history.apply(join(4)) is None
    world.run()
    topology = history.image.topology
    assert topology.version > floor
    assert topology.settled()
    again = record(history.image, new_log(THIRD))
    (fact,) = again.facts
    assert isinstance(fact, LogRecovered)
    assert fact.version_floor == topology.version + LOST_VERSIONS
    soon = record(evolve(history.image, again), new_log(b"\xff" * 16, b"\xff" * 16))
    (next_fact,) = soon.facts
    assert isinstance(next_fact, LogRecovered)
    assert next_fact.version_floor == fact.version_floor + LOST_VERSIONS


def test_two_recoveries_from_the_same_epoch_use_different_versions(image: Image) -> None:
    """A later recovery may replace an earlier one, whose versions name rows."""
    long_ago, later = 1_795_864_000_000, 1_795_864_000_900
    floors = list[int]()
    for log_id, at_ms in ((SECOND, long_ago), (THIRD, later)):
        new = replace(new_log(log_id), at_ms=at_ms)
        (fact,) = record(image, new).facts
        assert isinstance(fact, LogRecovered)
        floors.append(fact.version_floor)
    assert floors[1] - floors[0] >= later - long_ago
    assert floors[0] > image.topology.version + LOST_VERSIONS


@pytest.mark.parametrize("minutes", (1, 5, 16, 100))
def test_recoveries_in_quick_succession_use_different_versions(image: Image, minutes: int) -> None:
    """A replica that was given up returns, and its history replaces the newer one."""
    at_ms = 1_795_864_000_000
    (fact,) = (first := record(image, replace(new_log(SECOND), at_ms=at_ms))).facts
    assert isinstance(fact, LogRecovered)
    before, floors = evolve(image, first), [fact.version_floor]
    for times, last in ((1, THIRD), (2, b"\xfe" * 16)):
        new = replace(new_log(last, b"\xff" * 16), at_ms=at_ms + times * minutes * 60_000)
        (fact,) = record(before, new).facts
        assert isinstance(fact, LogRecovered)
        floors.append(fact.version_floor)
    apart = [later - earlier for earlier, later in pairwise(floors)]
    assert apart == [minutes * 60_000] * 2


# The relation of a known epoch to the history.


def test_epochs_of_old_incarnations_are_kept_or_lost(image: Image) -> None:
    last = image.epoch
    once = evolve(image, record(image))
    twice = evolve(once, record(once, new_log(THIRD, b"\xff" * 16))).founding
    old, between = LOG_ID.hex(), SECOND.hex()
    assert epoch_status(twice, THIRD.hex(), last + 99) is EpochStatus.HERE
    assert epoch_status(twice, old, last, image.state_id.hex()) is EpochStatus.KEPT
    assert epoch_status(twice, old, 0) is EpochStatus.KEPT
    assert epoch_status(twice, old, last + 1) is EpochStatus.LOST
    assert epoch_status(twice, old, last, "00" * 16) is EpochStatus.OTHER
    assert epoch_status(twice, between, last + 1, once.state_id.hex()) is EpochStatus.KEPT
    assert epoch_status(twice, between, last, "00" * 16) is EpochStatus.OTHER
    assert epoch_status(twice, between, last + 2) is EpochStatus.LOST
    assert epoch_status(twice, "ab" * 16, 1) is EpochStatus.OTHER


# The choice of the history.


def states(*numbers: int, side: int = 0) -> dict[int, bytes]:
    return {number: bytes([side, number] * 8) for number in numbers}


def archive(name: str, *numbers: int, side: int = 0, since: int = 1) -> HistorySource:
    known = states(*numbers, side=side)
    return HistorySource(
        name=name, log_id="aa", states=known, first_image=since, last_image=max(known, default=0)
    )


def teller(name: str, *numbers: int, side: int = 0) -> HistorySource:
    return HistorySource(name=name, log_id="aa", states=states(*numbers, side=side))


def chosen(*sources: HistorySource, take: str = "") -> HistoryChoice:
    found = choose(sources, take)
    assert isinstance(found, HistoryChoice), found
    return found


def test_longest_history_is_chosen_and_lost_epochs_are_reported() -> None:
    found = chosen(archive("a", 1, 2, 3), archive("b", 1, 2, 3, 4, 5), teller("n1", 5, 6, 7))
    assert (found.source, found.epoch, found.state_id) == ("b", 5, states(5)[5])
    assert (found.known_epoch, found.ahead, found.apart) == (7, ("n1",), ())
    assert (found.shared, found.unproven) == (("b", "n1"), ())
    level = chosen(archive("d", 1, 2), archive("c", 1, 2))
    assert (level.source, level.shared, level.known_epoch) == ("c", ("c", "d"), 2)


def test_epochs_of_a_successor_of_the_chosen_log_are_reported_lost() -> None:
    """The archive has them behind a hole: no image of them exists."""
    later = replace(archive("b", 2, 3, 4, 5), log_id="bb", last_image=2)
    found = chosen(archive("a", 1, 2, 3), later)
    assert (found.source, found.epoch, found.known_epoch) == ("a", 3, 5)
    assert found.ahead == ("b",)


def test_conflicting_sources_are_two_histories_and_need_take() -> None:
    other = {**states(1, 2), **states(3, 4, side=9)}
    fork = HistorySource(name="b", log_id="aa", states=other, first_image=1, last_image=4)
    sources = (archive("a", 1, 2, 3), fork, teller("n1", 3))
    refused = choose(sources)
    assert isinstance(refused, Rejection) and refused.code == "two_histories"
    assert "--take" in refused.hint
    assert refused.details == {
        "epoch": "3",
        states(3)[3].hex(): "a, n1",
        states(3, side=9)[3].hex(): "b",
    }
    found = chosen(*sources, take="a")
    assert (found.source, found.epoch, found.apart, found.known_epoch) == ("a", 3, ("b",), 4)
    assert chosen(*sources, take="b").apart == ("a", "n1")


def test_process_can_be_taken_if_an_archive_has_its_newest_image() -> None:
    fork = replace(archive("b", 3, 4, 5, side=9), states={**states(2), **states(3, 4, 5, side=9)})
    sources = (archive("a", 1, 2, 3, 4), fork, teller("n1", 2, 3), teller("n2", 3, 4, side=9))
    assert (chosen(*sources, take="n1").source, chosen(*sources, take="n1").epoch) == ("a", 4)
    assert (chosen(*sources, take="n2").source, chosen(*sources, take="n2").apart) == (
        "b",
        ("a", "n1"),
    )
    behind_a_hole = replace(archive("c", 1, 2, 5, 6), last_image=2)
    for told in ((archive("a", 1, 2), teller("n1", 2, 3)), (behind_a_hole, teller("n1", 5, 6))):
        refused = choose(told, "n1")
        assert isinstance(refused, Rejection) and refused.code == "nothing_left"


def test_process_at_the_fork_of_two_histories_cannot_be_taken() -> None:
    fork = replace(archive("b", 1, 2, 3, 4), states={**states(1, 2), **states(3, 4, side=9)})
    refused = choose((archive("a", 1, 2, 3), fork, teller("n1", 1, 2)), "n1")
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def test_node_that_acknowledged_another_history_is_a_conflict() -> None:
    refused = choose((archive("a", 1, 2, 3), teller("n1", 2, side=9)))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def promised(epoch: int, side: int = 0) -> HistorySource:
    return replace(teller("n1", epoch, side=side), promised=True)


def test_promised_epoch_of_a_node_counts_like_a_read_epoch() -> None:
    """The node reports only that epoch."""
    has = archive("a", 3, 4, 5, since=3)
    same = chosen(has, promised(4))
    assert (same.epoch, same.known_epoch, same.apart, same.unproven) == (5, 5, (), ())
    fork = choose((has, promised(4, side=9)))
    assert isinstance(fork, Rejection) and fork.code == "two_histories"
    later = choose((has, promised(7)))
    assert isinstance(later, Rejection) and later.code == "unproven"
    assert later.details == {"n1": "7"}
    assert chosen(has, promised(7), take="a").known_epoch == 7


def test_promise_older_than_all_archives_proves_nothing() -> None:
    """In an idle cluster, nodes acknowledge nothing new for a long time."""
    has = archive("a", 50, 51, since=50)
    assert chosen(has, promised(12)).unproven == ()
    assert to_compare((has, promised(12))) == (12,), "another replica may have it"
    older = archive("b", 12, 50)
    assert chosen(has, promised(12), older).source == "a"
    fork = choose((has, promised(12), replace(older, states=states(12, side=1) | states(50))))
    assert isinstance(fork, Rejection) and fork.code == "two_histories"
    inside = archive("a", 40, 50, since=40)
    refused = choose((inside, promised(45)))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    assert to_compare((inside, promised(45))) == (45,)


def test_unproven_histories_need_take() -> None:
    """The longer one may be what was lost: two replicas continued from its start."""
    sources = archive("a", 7, 8, 9, since=7), archive("b", 2, 3), teller("n1")
    refused = choose(sources)
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    assert "(b has read epoch 3)" in refused.message and "--take" in refused.hint
    assert refused.details == {"b": "3"}
    found = chosen(*sources, take="a")
    assert (found.epoch, found.unproven) == (9, ("b",))
    found = chosen(*sources, take="b")
    assert (found.epoch, found.unproven) == (3, ("a",))


def with_states(source: HistorySource, *numbers: int, side: int = 0) -> HistorySource:
    """Return the source with these states, as if it had been asked for them."""
    return replace(source, states={**states(*numbers, side=side), **source.states})


def test_epochs_that_distinguish_histories_are_requested() -> None:
    long, short = archive("a", 7, 8, 9), archive("b", 2, 3)
    assert to_compare((long, short, teller("n1"))) == (3,)
    assert to_compare((long, short, teller("n1", 4, 5))) == (3, 5)
    assert to_compare((long, archive("b", 3, 8), teller("n1", 9, 10))) == ()
    assert to_compare((short, teller("n1", 7, 8))) == (3,), "others may have both"
    assert to_compare((teller("n1", 7),)) == ()
    assert chosen(with_states(long, 3), short).unproven == ()
    refused = choose((with_states(long, 3, side=9), short))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"
    assert chosen(with_states(long, 3, side=9), short, take="b").apart == ("a",)


def test_later_epochs_behind_a_hole_follow_the_newest_shared_state() -> None:
    """They may be the continuation after an unclean election lost the end of the longest history."""
    long, later = archive("a", 1, 2, 3, 7, 8), replace(archive("b", 1, 2, 3, 11, 12), last_image=3)
    assert to_compare((long, later)) == (3, 8)
    refused = choose((long, later))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    assert refused.details == {"b": "12"}
    found = chosen(long, later, take="a")
    assert (found.epoch, found.ahead, found.unproven) == (8, ("b",), ("b",))
    found = chosen(long, with_states(later, 8))
    assert (found.epoch, found.known_epoch, found.unproven) == (8, 12, ())
    refused = choose((long, with_states(later, 8, side=9)))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def test_old_shared_epoch_does_not_prove_a_shared_history() -> None:
    """Both have a snapshot from before they diverged."""
    long, short = archive("a", 1, 7, 8, 9), archive("b", 1, 2, 3)
    refused = choose((long, short))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    assert to_compare((long, short)) == (3,)


def test_third_source_can_connect_two_parts_of_a_history() -> None:
    """One archive began with a snapshot, and another was away since before that."""
    new, away = archive("a", 7, 8, since=7), archive("b", 2, 3)
    assert chosen(new, away, archive("c", 3, 8)).unproven == ()
    assert chosen(new, away, archive("c", 3, 5), archive("d", 5, 8)).unproven == ()
    refused = choose((new, away, archive("c", 3, 4)))
    assert isinstance(refused, Rejection) and refused.details == {"b": "3", "c": "4"}
    behind = choose((new, archive("b", 5), archive("c", 5, 6), archive("d", 6, 8, side=0)))
    assert isinstance(behind, HistoryChoice)


def test_epochs_behind_the_newest_shared_one_prove_nothing() -> None:
    refused = choose((archive("a", 1, 7, 8), archive("b", 1, 3), archive("c", 3, 4)))
    assert isinstance(refused, Rejection) and refused.details == {"b": "3", "c": "4"}


def test_process_with_only_later_epochs_is_unproven() -> None:
    refused = choose((archive("a", 1, 2), teller("n1", 7, 8)))
    assert isinstance(refused, Rejection) and refused.details == {"n1": "8"}
    found = chosen(archive("a", 1, 2), teller("n1", 7, 8), take="a")
    assert (found.known_epoch, found.ahead, found.unproven) == (8, ("n1",), ("n1",))


def test_state_before_a_recovery_belongs_to_its_history() -> None:
    before = Incarnation("aa", "topic", 3, states(3)[3].hex(), 3, 1)
    later = replace(archive("b", 8, 9), log_id="bb", incarnations=(before,))
    assert chosen(archive("a", 2, 3), later).unproven == ()
    refused = choose((archive("a", 2, 3, side=9), later))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def test_longer_log_of_another_cluster_is_never_chosen() -> None:
    """This is a backup restored in the wrong place, with much greater epoch numbers."""
    ours, ours_too = archive("ours", 1, 2, 3), teller("node", 2, 3)
    theirs = replace(archive("theirs", 101, 102), log_id="ff" * 16)
    rejected = choose([ours, ours_too, theirs])
    assert isinstance(rejected, Rejection)
    assert rejected.code == "two_logs"
    assert "--take" in rejected.hint
    assert chosen(ours, ours_too, theirs, take="ours").epoch == 3
    before = Incarnation(ours.log_id, "topic", 100, "00" * 16, 100, 1)
    rejected = choose((ours, replace(theirs, incarnations=(before,))))
    assert isinstance(rejected, Rejection) and rejected.code == "unproven"


def test_choice_without_an_image_is_refused() -> None:
    for sources, take in (((), ""), ((teller("n1", 3),), ""), ((teller("n1", 3),), "n1")):
        refused = choose(sources, take)
        assert isinstance(refused, Rejection) and refused.code == "nothing_left"
    refused = choose((archive("a", 1),), take="b")
    assert isinstance(refused, Rejection) and refused.code == "unknown_source"
    assert "Name one of: a." in refused.hint


def test_reader_from_the_first_epoch_has_no_image() -> None:
    """The process reports the state before the first epoch as well, which belongs to no epoch."""
    refused = choose([teller("w1", 0, 1, 2)])
    assert isinstance(refused, Rejection) and refused.code == "nothing_left"


def two_ends(image: Image) -> tuple[HistorySource, HistorySource]:
    """Return the ends of "b", which missed a recovery and has two epochs more, and of "a", which has it."""
    after, last = evolve(image, record(image)).founding, image.epoch
    kept = {last: image.state_id}
    missed = HistorySource(
        name="b",
        log_id=LOG_ID.hex(),
        states=kept | states(last + 1, last + 2, side=9),
        first_image=1,
        last_image=last + 2,
    )
    went_on = HistorySource(
        name="a",
        log_id=SECOND.hex(),
        states=kept | states(last + 1),
        first_image=1,
        last_image=last + 1,
        incarnations=after.incarnations,
    )
    return missed, went_on


def test_epochs_given_up_by_an_earlier_recovery_are_no_second_history(image: Image) -> None:
    """An archive that missed the recovery still has the lost epochs."""
    missed, went_on = two_ends(image)
    last = image.epoch
    found = chosen(missed, went_on)
    assert (found.source, found.epoch, found.known_epoch) == ("a", last + 1, last + 1)
    assert found.given_up == (
        GivenUp(source="b", log_id=LOG_ID.hex(), first=last + 1, last=last + 2),
    )
    asked = unagreed(found, (), (), None)
    assert asked is not None and asked.message == (
        f"b has epochs {last + 1} to {last + 2} of log {LOG_ID.hex()}: an earlier recovery gave them up."
    )
    assert f"--lose-after {last + 1}." in asked.hint and "--take" in asked.hint
    assert unagreed(found, (), (), last) is not None
    assert unagreed(found, (), (), last + 1) is None
    assert chosen(went_on).given_up == ()
    newest = states(last + 2, side=9)
    process = replace(missed, states=newest, first_image=0, last_image=0)
    (given_up,) = chosen(process, went_on).given_up
    assert (given_up.first, given_up.last) == (last + 2, last + 2), "no more than it has"
    promise = replace(missed, first_image=0, last_image=0, promised=True)
    assert chosen(promise, went_on).given_up == ()


def test_taken_source_keeps_all_its_epochs(image: Image) -> None:
    """Another source knows of a recovery that gave it up. Otherwise both ends would be left out."""
    missed, went_on = two_ends(image)
    last = image.epoch
    found = chosen(missed, went_on, take="b")
    assert (found.source, found.epoch, found.apart) == ("b", last + 2, ("a",))
    assert chosen(missed, went_on, take="a").epoch == last + 1


def test_log_does_not_give_up_its_own_epochs(image: Image) -> None:
    """The replica claims a recovery of its own log."""
    before = evolve(image, record(image)).founding.incarnations[0]
    own = replace(before, log_id="aa", last_epoch=1, state_id=states(1)[1].hex())
    found = chosen(archive("a", 1, 2, 3), replace(archive("b", 1, 2, 3), incarnations=(own,)))
    assert (found.epoch, found.given_up) == (3, ())


def test_lost_later_log_counts_as_at_least_one_lost_epoch() -> None:
    later = replace(promised(2), log_id="bb")
    refused = choose((archive("a", 1, 2, 3), later))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    taken = chosen(archive("a", 1, 2, 3), later, take="a")
    assert taken.unproven == ("n1",)
    assert chosen(replace(archive("a", 1, 2, 3), log_id="bb"), later).unproven == ()
