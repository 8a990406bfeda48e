"""Choice and change of members: one at a time, additions first, never too few."""

import msgspec
import pytest

from stele.domain.commands import (
    Cancel,
    ChooseMembers,
    ForgetReplica,
    Noop,
    ReconfigureCatchUp,
    ServeRequest,
    WithdrawSnapshot,
)
from stele.domain.model.archive import Replica, SnapshotAsked
from stele.domain.model.cluster import Incarnation
from stele.domain.names import ReplicaState, RequestStatus
from stele.domain.rules.retention import choose, why_not_without
from stele.domain.topology.operations.reconfigure_catch_up import RECONFIGURE_CATCH_UP
from tests.domain.archive.announced import replica, snapshot, truncate
from tests.domain.archive.logs import (
    agree,
    archive,
    founded,
    pass_epochs,
    refusal,
    took,
    with_members,
)
from tests.domain.epochs import History

STATUS = RequestStatus
OTHER_LOG = bytes(15) + b"\1"


def row(name: str, dc: str, rack: str, state: ReplicaState = ReplicaState.CANDIDATE) -> Replica:
    return Replica(
        replica_id=name, dc=dc, rack=rack, address="http://x", state=state, since_epoch=1
    )


def member(name: str, dc: str, rack: str) -> Replica:
    return row(name, dc, rack, ReplicaState.MEMBER)


# The choice of members.


@pytest.mark.parametrize(
    ("replicas", "wanted", "last", "chosen"),
    [
        ([row("a", "d", "r"), row("b", "d", "r")], {"": 1}, "", "a"),
        ([row("a", "d", "r"), member("b", "d", "r")], {"": 1}, "", "b"),
        ([row("a", "d", "r"), member("b", "d", "r")], {"": 1}, "b", "a"),
        ([row("a", "d", "r"), member("b", "d", "r")], {"": 3}, "b", "ab"),
        ([member(n, "d", r) for n, r in ("a1", "b1", "c2")], {"": 2}, "", "ac"),
        ([member("a", "d", "1"), member("b", "d", "2"), row("c", "e", "1")], {"": 2}, "", "ac"),
        ([member("a", "d", "1"), member("b", "d", "2"), row("c", "e", "1")], {"": 2}, "c", "ab"),
        ([row(n, "d", n) for n in "abc"] + [row("e", "e", "1")], {"d": 2, "e": 2}, "", "abe"),
        ([row(n, "d", r) for n, r in ("a1", "b1", "c2", "d2")], {"d": 3}, "", "acb"),
        ([row("a", "d", "r")], {"x": 1}, "", ""),
        ([], {"": 3}, "", ""),
    ],
    ids=[
        "first by name",
        "members first",
        "down replica last",
        "down replica if there are no others",
        "spread over racks",
        "spread over dcs before racks and members",
        "live replicas before the spread",
        "number by dc",
        "racks in turn",
        "no replica in the dc",
        "no replicas",
    ],
)
def test_choice_of_members(
    replicas: list[Replica], wanted: dict[str, int], last: str, chosen: str
) -> None:
    for order in (replicas, replicas[::-1]):
        assert choose(order, wanted, {*last}) == (*chosen,)


# The request.


def test_reconfigure_updates_the_replication_setting() -> None:
    history = with_members("c-1", "c-2", "c-3")
    took(history, ReconfigureCatchUp(replication="dc1=2"))
    assert history.image.features.settings["archive_replication"] == "dc1=2"
    assert history.image.requests.reconfigurations()[0].archive_replication == "dc1=2"
    took(history, ReconfigureCatchUp())
    assert history.image.requests.reconfigurations()[1].archive_replication == "dc1=2"


@pytest.mark.parametrize(
    ("replication", "code"),
    [
        ("none", "bad_replication"),
        ("0", "bad_replication"),
        ("3", "too_few_replicas"),
        ("dc9=1", "too_few_replicas"),
        ("a b=1", "bad_name"),
    ],
)
def test_invalid_replication_is_refused(replication: str, code: str) -> None:
    history = with_members("c-1", "c-2")
    assert refusal(history, ReconfigureCatchUp(replication=replication)).code == code


def test_reconfigure_without_replicas_is_refused() -> None:
    assert refusal(founded(), ReconfigureCatchUp()).code == "no_replicas"


def test_reconfigure_based_on_an_older_state_is_refused() -> None:
    history = with_members("c-1")
    seen = archive(history).changed_epoch
    took(history, Noop(), replica("c-2"))
    assert refusal(history, ReconfigureCatchUp(as_of_epoch=seen)).code == "overtaken"
    newest = archive(history).changed_epoch
    took(history, ReconfigureCatchUp(as_of_epoch=newest))
    again = ReconfigureCatchUp(as_of_epoch=newest)
    assert refusal(history, again).code == "overtaken", "one is under way"


# Steps.


def asked(history: History, replication: str, request_id: str = "the-request") -> None:
    assert history.apply(ReconfigureCatchUp(replication=replication), request_id) is None


def choice(history: History, *members: str, request_id: str = "the-request") -> ChooseMembers:
    return ChooseMembers(1, request_id, members, archive(history).changed_epoch)


def step(history: History, request_id: str = "the-request") -> str:
    """Take one step. Return what it waits for, or an empty string if the step was taken."""
    request = history.image.request(request_id)
    assert request is not None
    served = RECONFIGURE_CATCH_UP.served
    assert served is not None
    missing = served.missing(history.image, request)
    said = ServeRequest(1, request_id, request.status, served.since(history.image, request))
    refused = history.apply(said)
    assert (refused is None) == (missing is None)
    assert refused is None or refused.code == "overtaken"
    return "" if missing is None else missing.what


def steps(history: History, request_id: str = "the-request") -> str:
    """Take all possible steps. Return what the request waits for, or its final status."""
    while True:
        request = history.image.request(request_id)
        assert request is not None
        if request.status not in (STATUS.PENDING, STATUS.RUNNING):
            return str(request.status)
        waits = step(history, request_id)
        if waits:
            return waits


def states(history: History) -> dict[str, str]:
    return {name: each.state[0] for name, each in sorted(archive(history).replicas.items())}


def four(archived: bool = True) -> History:
    """Return a log with members c-1 to c-3 and candidate c-4, truncated if ``archived``."""
    history = with_members("c-1", "c-2", "c-3")
    took(history, replica("c-4"))
    if archived:
        took(history, truncate(agree(history, "c-1", "c-2", "c-3")))
    return history


def test_member_joins_before_another_one_leaves() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    began = history.image.epoch
    assert history.epochs[-1].facts[1] == SnapshotAsked(began)
    assert states(history) == {"c-1": "m", "c-2": "m", "c-3": "m", "c-4": "j"}
    waits = f"c-4 to have a snapshot of epoch {began} or later, and all epochs from 1 on"
    assert step(history) == f"{waits}; it has announced none"
    took(history, snapshot("c-4", began, first_epoch=2))
    assert step(history) == f"{waits}; it has 2 to {began}"
    took(history, snapshot("c-4", began - 1))
    assert step(history) == f"{waits}; it has 2 to {began}"
    took(history, snapshot("c-4", began))
    assert step(history) == ""
    assert states(history) == {"c-1": "m", "c-2": "m", "c-3": "m", "c-4": "m"}
    assert step(history) == ""
    assert states(history) == {"c-1": "m", "c-2": "m", "c-3": "c", "c-4": "m"}
    assert step(history) == ""
    assert steps(history) == "done"


def test_replica_with_another_snapshot_does_not_become_a_member() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-4"))
    assert step(history) == ""
    epoch = history.image.epoch
    took(history, snapshot("c-1", epoch), snapshot("c-4", epoch, content="wrong"))
    assert steps(history).endswith(f"it has 1 to {epoch}, of which c-1 has another snapshot")
    took(history, snapshot("c-2", epoch))
    assert steps(history).endswith(f"its snapshot of epoch {epoch} is not the members'")
    took(history, snapshot("c-4", epoch))
    assert step(history) == "" and "c-4" in archive(history).members()


def test_diverged_member_does_not_block_a_joining_replica() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    epoch = history.image.epoch
    took(history, snapshot("c-3", epoch, content="wrong"))
    took(history, *(snapshot(name, epoch) for name in ("c-1", "c-2", "c-4")))
    assert steps(history) == "done"


def test_member_stays_while_the_others_lack_its_archive() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-2")
    took(history, truncate(epoch))
    asked(history, "2")
    took(history, choice(history, "c-2", "c-3"))
    needed = f"2 of the other members must have epochs 1 to {epoch}, which are not all in the log"
    assert steps(history) == f"c-1 to be dispensable: {needed}; c-2 has"
    took(history, snapshot("c-3", pass_epochs(history)))
    assert steps(history) == "done"
    assert archive(history).members() == ["c-2", "c-3"]


def test_member_without_the_archive_leaves_first() -> None:
    """c-2 has lost its disk: c-1 cannot go first."""
    history = with_members("c-1", "c-2", "c-3", archive_replication="3")
    epoch = agree(history, "c-1", "c-2", "c-3")
    took(history, truncate(epoch), WithdrawSnapshot("c-2", epoch))
    asked(history, "1")
    took(history, choice(history, "c-3"))
    assert step(history) == ""
    assert archive(history).members() == ["c-1", "c-3"]
    assert steps(history) == "done"
    assert archive(history).members() == ["c-3"]


def test_reconfigurations_run_in_order() -> None:
    history = four()
    asked(history, "3", "first")
    asked(history, "2", "second")
    assert step(history, "second") == "reconfigure_catch_up (first), which was asked for before"
    late = refusal(history, choice(history, "c-1", request_id="second"))
    assert late.code == "overtaken" and "turn" in late.message
    assert step(history, "first") == "the choice of members"
    took(history, choice(history, "c-1", "c-2", "c-3", request_id="first"))
    assert steps(history, "first") == "done"
    took(history, choice(history, "c-1", "c-2", request_id="second"))
    assert steps(history, "second") == "done"
    assert archive(history).members() == ["c-1", "c-2"]


def test_cancel_returns_a_joining_replica_to_candidate() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    took(history, Cancel("the-request"))
    assert states(history) == {"c-1": "m", "c-2": "m", "c-3": "m", "c-4": "c"}
    assert refusal(history, ServeRequest(1, "the-request", STATUS.RUNNING, 0)).code == "overtaken"


def test_cancel_of_a_waiting_reconfiguration_changes_nothing() -> None:
    history = four()
    asked(history, "3", "first")
    took(history, choice(history, "c-1", "c-2", "c-4", request_id="first"))
    assert step(history, "first") == ""
    asked(history, "2", "second")
    took(history, Cancel("second"))
    assert states(history)["c-4"] == "j"


def test_new_choice_returns_a_joining_replica_to_candidate() -> None:
    history = four()
    took(history, replica("c-5"))
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    took(history, choice(history, "c-1", "c-2", "c-5"))
    assert states(history)["c-4"] == "c"
    assert step(history) == ""
    assert states(history)["c-5"] == "j"


def test_repeated_step_is_refused() -> None:
    history = four()
    asked(history, "2")
    took(history, choice(history, "c-1", "c-2"))
    seen = archive(history).changed_epoch
    took(history, ServeRequest(1, "the-request", STATUS.RUNNING, seen))
    again = refusal(history, ServeRequest(1, "the-request", STATUS.RUNNING, seen))
    assert again.code == "overtaken" and "step" in again.message


@pytest.mark.parametrize(
    "members", [(), ("c-9",), ("c-1", "c-1"), ("c-1", "c-2", "c-3", "c-4"), ("c-1", "")]
)
def test_invalid_choice_of_members_is_refused(members: tuple[str, ...]) -> None:
    history = four()
    asked(history, "3")
    refused = refusal(history, choice(history, *members))
    assert refused.code in ("bad_members", "overtaken")


def test_choice_with_too_many_members_in_a_dc_is_refused() -> None:
    history = four()
    took(history, replica("d-1", dc="dc2"))
    asked(history, "dc1=2,dc2=1")
    assert refusal(history, choice(history, "c-1", "c-2", "c-3")).code == "bad_members"
    took(history, choice(history, "c-1", "c-2", "d-1"))


def test_choice_needs_the_current_term_and_the_newest_state() -> None:
    history = four()
    asked(history, "3")
    stale = ChooseMembers(0, "the-request", ("c-1",), archive(history).changed_epoch)
    assert refusal(history, stale).code == "stale_term"
    older = ChooseMembers(1, "the-request", ("c-1",), archive(history).changed_epoch - 1)
    assert refusal(history, older).code == "overtaken"
    assert refusal(history, choice(history, "c-1", request_id="none")).code == "unknown_request"


def test_reconfiguration_ends_when_its_joining_replica_is_forgotten() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    took(history, ForgetReplica(replica_id="c-4"))
    assert steps(history) == "done"
    assert archive(history).members() == ["c-1", "c-2"]


def test_joining_replica_must_have_a_snapshot_after_a_later_truncation() -> None:
    history = four()
    asked(history, "3")
    took(history, choice(history, "c-1", "c-2", "c-4"))
    assert step(history) == ""
    took(history, snapshot("c-4", history.image.epoch))
    epoch = agree(history, "c-1", "c-2", "c-3")
    took(history, truncate(epoch))
    assert f"a snapshot of epoch {epoch} or later" in step(history)
    took(history, snapshot("c-4", epoch))
    assert steps(history) == "done"


def test_any_member_but_the_last_can_leave_before_a_truncation() -> None:
    history = four(archived=False)
    assert [why_not_without(history.image, f"c-{n}") for n in (1, 2, 3, 4)] == [""] * 4
    asked(history, "1")
    took(history, choice(history, "c-2"))
    assert steps(history) == "done"
    assert archive(history).members() == ["c-2"]


# A recovered log begins behind epochs that only the archives hold.


def recovered(history: History) -> int:
    """Recover the log in another topic. Return the last epoch that is in no topic."""
    last = history.image.epoch
    founding = history.image.founding
    before = Incarnation(
        log_id=founding.log_id.hex(),
        topic_id="",
        last_epoch=last,
        state_id=history.image.state_id.hex(),
        known_epoch=last,
        version_floor=0,
    )
    changed = msgspec.structs.replace(founding, log_id=OTHER_LOG, incarnations=(before,))
    history.images.append(msgspec.structs.replace(history.image, founding=changed))
    return last


def test_new_replica_stays_a_candidate_in_a_recovered_log() -> None:
    history = with_members("c-1", archive_replication="3")
    recovered(history)
    took(history, replica("c-2"))
    assert archive(history).members() == ["c-1"]


def test_member_of_a_recovered_log_stays_until_the_others_have_old_epochs() -> None:
    history = with_members("c-1", "c-2")
    agree(history, "c-1", "c-2")
    last = recovered(history)
    assert f"epochs 1 to {last}" in why_not_without(history.image, "c-1")
    epoch = pass_epochs(history)
    took(history, snapshot("c-2", epoch, log_id=OTHER_LOG))
    assert why_not_without(history.image, "c-1") == ""
    assert why_not_without(history.image, "c-2") != ""


def test_snapshots_of_the_previous_log_are_accepted_up_to_its_last_epoch() -> None:
    history = with_members("c-1")
    last = recovered(history)
    pass_epochs(history)
    took(history, snapshot("c-1", last - 1))
    assert refusal(history, snapshot("c-1", last + 1)).code == "foreign_log"
    assert refusal(history, truncate(last - 1)).code == "no_majority", "its offset is of that log"
