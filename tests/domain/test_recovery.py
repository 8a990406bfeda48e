"""A recovered log continues under another id, and the choice of its history is checked first."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from stele.domain.base import Rejection
from stele.domain.cluster.model import Incarnation, LogRecovered, Standing, standing
from stele.domain.commands import CreateKeyspace, Envelope
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.recovery.histories import (
    GivenUp,
    HistoryChoice,
    HistorySource,
    choose,
    to_compare,
    unagreed,
)
from stele.domain.recovery.record import NewLog, Why, recovered, recovery_of
from stele.domain.recovery.versions import LOST_VERSIONS, floor_after
from stele.domain.schema.model import KeyspaceChanged
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


def test_a_recovered_log_goes_on_after_the_last_epoch_under_its_new_id(image: Image) -> None:
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


def test_a_log_that_was_recovered_twice_is_its_own_snapshot(image: Image) -> None:
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


def test_ids_that_are_not_greater_and_a_log_that_never_was_are_refused(image: Image) -> None:
    for new in (new_log(LOG_ID), new_log(bytes(16)), new_log(state_id=image.state_id)):
        refused = recovered(image, new, WHY)
        assert isinstance(refused, Rejection) and refused.code == "not_later"
    refused = recovered(EMPTY, new_log(), WHY)
    assert isinstance(refused, Rejection) and refused.code == "nothing_to_recover"


def test_what_contradicts_itself_is_no_recovery(image: Image) -> None:
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


def test_ids_made_in_the_same_epoch_differ_once_the_log_was_recovered(image: Image) -> None:
    """A keyspace that was made in a lost epoch, and is made again, must not find the lost one's data."""
    lost = replace(image, epoch=image.epoch + 1)
    envelope = Envelope(request_id="", command=CreateKeyspace("again", {"dc1": 3}))
    ids = set[str]()
    for each in (lost, evolve(image, record(image))):
        facts = decide(each, envelope, 0)
        assert not isinstance(facts, Rejection)
        ids |= {fact.keyspace.keyspace_id for fact in facts if isinstance(fact, KeyspaceChanged)}
    assert len(ids) == 2


def test_versions_of_a_recovered_log_are_greater_than_any_that_was_lost() -> None:
    """A data id holds the version that truncated what was before, and a token the one that it was made by."""
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


def test_versions_of_two_logs_that_go_on_from_the_same_epoch_are_different(image: Image) -> None:
    """A recovery may be taken back by another one; rows of the first are named by its versions."""
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
def test_so_they_are_where_the_log_was_recovered_shortly_before(image: Image, minutes: int) -> None:
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


# How an epoch that somebody knows stands to it.


def test_epochs_of_old_incarnations_are_kept_or_lost(image: Image) -> None:
    last = image.epoch
    once = evolve(image, record(image))
    twice = evolve(once, record(once, new_log(THIRD, b"\xff" * 16))).founding
    old, between = LOG_ID.hex(), SECOND.hex()
    assert standing(twice, THIRD.hex(), last + 99) is Standing.HERE
    assert standing(twice, old, last, image.state_id.hex()) is Standing.KEPT
    assert standing(twice, old, 0) is Standing.KEPT
    assert standing(twice, old, last + 1) is Standing.LOST
    assert standing(twice, old, last, "00" * 16) is Standing.OTHER
    assert standing(twice, between, last + 1, once.state_id.hex()) is Standing.KEPT
    assert standing(twice, between, last, "00" * 16) is Standing.OTHER
    assert standing(twice, between, last + 2) is Standing.LOST
    assert standing(twice, "ab" * 16, 1) is Standing.OTHER


# Which history is left.


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


def test_the_longest_history_is_chosen_and_what_is_known_to_be_lost_is_said() -> None:
    found = chosen(archive("a", 1, 2, 3), archive("b", 1, 2, 3, 4, 5), teller("n1", 5, 6, 7))
    assert (found.source, found.epoch, found.state_id) == ("b", 5, states(5)[5])
    assert (found.known_epoch, found.ahead, found.apart) == (7, ("n1",), ())
    assert (found.shared, found.unproven) == (("b", "n1"), ())
    level = chosen(archive("d", 1, 2), archive("c", 1, 2))
    assert (level.source, level.shared, level.known_epoch) == ("c", ("c", "d"), 2)


def test_epochs_of_a_log_that_came_from_the_chosen_one_are_lost_too() -> None:
    """It has them behind a hole in its archive: no image of them can be had."""
    later = replace(archive("b", 2, 3, 4, 5), log_id="bb", last_image=2)
    found = chosen(archive("a", 1, 2, 3), later)
    assert (found.source, found.epoch, found.known_epoch) == ("a", 3, 5)
    assert found.ahead == ("b",)


def test_sources_that_disagree_are_two_histories_and_one_must_be_named() -> None:
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


def test_a_process_is_taken_where_an_archive_has_an_image_of_its_newest_epoch() -> None:
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


def test_a_process_from_whose_end_two_histories_go_on_names_neither() -> None:
    fork = replace(archive("b", 1, 2, 3, 4), states={**states(1, 2), **states(3, 4, side=9)})
    refused = choose((archive("a", 1, 2, 3), fork, teller("n1", 1, 2)), "n1")
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def test_a_node_that_acknowledged_another_history_counts_too() -> None:
    refused = choose((archive("a", 1, 2, 3), teller("n1", 2, side=9)))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def promised(epoch: int, side: int = 0) -> HistorySource:
    return replace(teller("n1", epoch, side=side), promised=True)


def test_what_a_node_has_promised_counts_as_what_others_have_read() -> None:
    """It tells that epoch alone."""
    has = archive("a", 3, 4, 5, since=3)
    same = chosen(has, promised(4))
    assert (same.epoch, same.known_epoch, same.apart, same.unproven) == (5, 5, (), ())
    fork = choose((has, promised(4, side=9)))
    assert isinstance(fork, Rejection) and fork.code == "two_histories"
    later = choose((has, promised(7)))
    assert isinstance(later, Rejection) and later.code == "unproven"
    assert later.details == {"n1": "7"}
    assert chosen(has, promised(7), take="a").known_epoch == 7


def test_what_a_node_promised_before_all_that_is_held_tells_nothing() -> None:
    """A cluster that does not change has nodes that acknowledged nothing new for as long."""
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


def test_where_nobody_can_tell_whether_there_are_two_histories_one_must_be_named() -> None:
    """The longer one may be what was lost: two replicas continued from its beginning."""
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
    """Once it was asked for these."""
    return replace(source, states={**states(*numbers, side=side), **source.states})


def test_what_tells_two_histories_apart_is_asked_for() -> None:
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


def test_later_epochs_behind_a_hole_are_of_the_history_whose_newest_state_they_follow() -> None:
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


def test_an_old_epoch_that_two_share_says_nothing_of_what_came_after_it() -> None:
    """Both have a snapshot from before they parted."""
    long, short = archive("a", 1, 7, 8, 9), archive("b", 1, 2, 3)
    refused = choose((long, short))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    assert to_compare((long, short)) == (3,)


def test_a_third_one_may_tell_that_two_are_of_one_history() -> None:
    """One began with a snapshot, and another was away since before that."""
    new, away = archive("a", 7, 8, since=7), archive("b", 2, 3)
    assert chosen(new, away, archive("c", 3, 8)).unproven == ()
    assert chosen(new, away, archive("c", 3, 5), archive("d", 5, 8)).unproven == ()
    refused = choose((new, away, archive("c", 3, 4)))
    assert isinstance(refused, Rejection) and refused.details == {"b": "3", "c": "4"}
    behind = choose((new, archive("b", 5), archive("c", 5, 6), archive("d", 6, 8, side=0)))
    assert isinstance(behind, HistoryChoice)


def test_what_one_has_behind_the_newest_that_it_shares_proves_nothing() -> None:
    refused = choose((archive("a", 1, 7, 8), archive("b", 1, 3), archive("c", 3, 4)))
    assert isinstance(refused, Rejection) and refused.details == {"b": "3", "c": "4"}


def test_a_process_that_tells_of_later_epochs_alone_may_be_of_another_history() -> None:
    refused = choose((archive("a", 1, 2), teller("n1", 7, 8)))
    assert isinstance(refused, Rejection) and refused.details == {"n1": "8"}
    found = chosen(archive("a", 1, 2), teller("n1", 7, 8), take="a")
    assert (found.known_epoch, found.ahead, found.unproven) == (8, ("n1",), ("n1",))


def test_the_state_that_a_recovery_went_on_from_is_one_of_its_history() -> None:
    before = Incarnation("aa", "topic", 3, states(3)[3].hex(), 3, 1)
    later = replace(archive("b", 8, 9), log_id="bb", incarnations=(before,))
    assert chosen(archive("a", 2, 3), later).unproven == ()
    refused = choose((archive("a", 2, 3, side=9), later))
    assert isinstance(refused, Rejection) and refused.code == "two_histories"


def test_a_log_of_another_cluster_is_never_chosen_because_it_is_longer() -> None:
    """A backup that was restored in the wrong place: its epochs are numbered on from far behind."""
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


def test_nothing_can_be_chosen_where_nobody_has_an_image() -> None:
    for sources, take in (((), ""), ((teller("n1", 3),), ""), ((teller("n1", 3),), "n1")):
        refused = choose(sources, take)
        assert isinstance(refused, Rejection) and refused.code == "nothing_left"
    refused = choose((archive("a", 1),), take="b")
    assert isinstance(refused, Rejection) and refused.code == "unknown_source"
    assert "Name one of: a." in refused.hint


def test_who_has_read_the_log_from_its_first_epoch_has_no_image_for_that() -> None:
    """It tells the state before that epoch too, which is that of no epoch."""
    refused = choose([teller("w1", 0, 1, 2)])
    assert isinstance(refused, Rejection) and refused.code == "nothing_left"


def two_ends(image: Image) -> tuple[HistorySource, HistorySource]:
    """Return the ends of archive "b", which missed a recovery and has two epochs more, and of "a", which
    followed it.
    """
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


def test_epochs_that_an_earlier_recovery_gave_up_are_no_second_history(image: Image) -> None:
    """An archive that missed the recovery still has what was lost."""
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


def test_who_is_named_is_gone_on_from_with_all_that_he_has(image: Image) -> None:
    """Though another one knows of a recovery that gave it up: else both ends were left out."""
    missed, went_on = two_ends(image)
    last = image.epoch
    found = chosen(missed, went_on, take="b")
    assert (found.source, found.epoch, found.apart) == ("b", last + 2, ("a",))
    assert chosen(missed, went_on, take="a").epoch == last + 1


def test_a_log_does_not_give_up_its_own_epochs(image: Image) -> None:
    """Whatever a replica says of itself."""
    before = evolve(image, record(image)).founding.incarnations[0]
    own = replace(before, log_id="aa", last_epoch=1, state_id=states(1)[1].hex())
    found = chosen(archive("a", 1, 2, 3), replace(archive("b", 1, 2, 3), incarnations=(own,)))
    assert (found.epoch, found.given_up) == (3, ())


def test_a_later_log_of_which_nothing_is_left_has_lost_an_epoch_at_least() -> None:
    later = replace(promised(2), log_id="bb")
    refused = choose((archive("a", 1, 2, 3), later))
    assert isinstance(refused, Rejection) and refused.code == "unproven"
    taken = chosen(archive("a", 1, 2, 3), later, take="a")
    assert taken.unproven == ("n1",)
    assert chosen(replace(archive("a", 1, 2, 3), log_id="bb"), later).unproven == ()
