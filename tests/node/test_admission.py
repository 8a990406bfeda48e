"""Joins and announcements: one request id is retried until the outcome is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from immutables import Map
from msgspec.structs import replace

from stele.agent.admission import (
    RENEWALS,
    Advertised,
    JoinRejected,
    admit,
    check_place,
    claims_too_much,
    expelled,
    join_ended,
    keep_synced,
    note_tokens,
    wait_for_membership,
)
from stele.agent.identity import DataDirectory, Identity, boot
from stele.agent.member import Membership
from stele.agent.settings import AgentSettings
from stele.domain.commands import (
    AnnounceNode,
    Cancel,
    Envelope,
    Join,
    Leave,
    Outcome,
    Rejection,
    Replace,
    Rollback,
)
from stele.domain.image import Image
from stele.domain.model.features import FeaturesImage
from stele.domain.model.membership import MembershipImage, Node, unclaimed
from stele.domain.model.requests import parse, time_ms
from stele.domain.names import NodeState
from stele.log.commander import NotTakenError
from stele.log.errors import AnchorLostError
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError
from tests.domain.history import join
from tests.node.world import World
from tests.polling import until

Directory = Callable[..., DataDirectory]

ADVERTISED = Advertised(address="http://n9", dc="dc1", rack="r9", num_tokens=8)


class Log:
    """Returns the given answers in order; an exception is raised."""

    def __init__(self, *answers: Rejection | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[Envelope] = []
        self.on_asked: Callable[[], object] = lambda: None

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        self.asked.append(envelope)
        self.on_asked()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Outcome(
            request_id=envelope.request_id,
            applied=answer is None,
            epoch=1,
            state_id=b"",
            rejection=answer,
        )


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Return a factory of data directories whose join has the request id join-1."""

    def of(node_id: str, **changes: object) -> DataDirectory:
        made = DataDirectory(tmp_path, Identity(node_id, "demo", "host-1", 0, "join-1"))
        made.save(**changes)
        return made

    return of


async def test_join_is_retried_under_one_request_id_until_its_outcome_is_known(
    world: World, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.agent.admission.RETRY_S", 0.001)
    not_founded = NotTakenError("join-1", Rejection("not_founded", "There is no cluster."))
    another = NotTakenError("join-1", Rejection("other_log", "This is another log."))
    log = Log(TimeoutError(), not_founded, another, None)
    await admit(directory("n9"), ADVERTISED, await world.follower(), log, Stop())
    assert [envelope.request_id for envelope in log.asked] == ["join-1"] * 4
    assert {envelope.log_id for envelope in log.asked} == {world.image.log_id.hex()}
    command = log.asked[0].command
    assert isinstance(command, Join)
    assert (command.address, command.rack, command.num_tokens) == ("http://n9", "r9", 8)
    assert command.host_id == "host-1"


OWN = {"node_id": "n9", "rack": "r9", "host_id": "host-1"}


@pytest.mark.parametrize(
    ("node_id", "advertised", "kind", "expected"),
    [
        ("n9", {"initial_tokens": (300, -5)}, Join, {**OWN, "initial_tokens": (300, -5)}),
        ("n9", {"replaced_id": "n2"}, Replace, {**OWN, "replaced_id": "n2"}),
        ("n1", {}, AnnounceNode, {"address": "http://n9", "host_id": "host-1"}),
    ],
    ids=["tokens of the settings", "replaces a node", "member with a new address"],
)
async def test_command_of_a_start_follows_from_settings_and_log(
    world: World,
    directory: Directory,
    node_id: str,
    advertised: dict[str, Any],
    kind: type[Any],
    expected: dict[str, Any],
) -> None:
    log = Log(None)
    told = replace(ADVERTISED, **advertised)
    await admit(directory(node_id), told, await world.follower(), log, Stop())
    command = log.asked[0].command
    assert type(command) is kind
    assert {name: getattr(command, name) for name in expected} == expected


def test_initial_tokens_are_parsed_from_the_settings() -> None:
    assert AgentSettings(initial_tokens="300,-5").chosen_tokens() == (300, -5)
    assert AgentSettings().chosen_tokens() == ()


@pytest.mark.parametrize("taken", [True, False])
async def test_rejected_join_ends_the_node_with_the_reason(
    world: World, directory: Directory, taken: bool
) -> None:
    rejection = Rejection("address_in_use", "Address belongs to 'n1'.", "Give it its own.")
    log = Log(rejection if taken else NotTakenError("join-1", rejection))
    with pytest.raises(JoinRejected, match=r"belongs to 'n1'. Give it its own. \(address_in_use"):
        await admit(directory("n9"), ADVERTISED, await world.follower(), log, Stop())


def test_rejected_node_joins_under_a_new_request_id_after_restart(tmp_path: Path) -> None:
    """A rejection stays under its id, even when the operator has fixed its cause."""
    first = boot(tmp_path, "n9", "demo")
    before = first.identity.join_request_id
    assert boot(tmp_path, "n9", "demo").identity.join_request_id == before
    first.join_again()
    again = boot(tmp_path, "n9", "demo").identity
    assert again.join_request_id != before
    assert parse(again.join_request_id) is not None


async def test_left_node_sends_no_command(world: World, directory: Directory) -> None:
    world.start_join()
    world.fence()
    world.apply(Rollback(1, "join-n4", "why"))
    world.advance()
    world.advance()
    node = world.image.node("n4")
    assert node is not None and node.state is NodeState.LEFT
    await admit(directory("n4"), ADVERTISED, await world.follower(), Log(), Stop())


REUSED = Rejection("request_id_reused", "This request id stands for another command.")


async def test_join_of_an_earlier_start_counts_and_the_new_address_is_announced(
    world: World, directory: Directory
) -> None:
    """The node crashed before it knew the outcome. The request id stands for its old address."""
    follower = await world.follower()
    log = Log(NotTakenError("join-1", REUSED), None)
    earlier = replace(join(9), host_id="host-1")

    def decide_once() -> None:
        if world.image.node("n9") is None:
            world.apply(earlier, "join-1")

    log.on_asked = decide_once
    await admit(directory("n9"), ADVERTISED, follower, log, Stop())
    asked, announced = (envelope.command for envelope in log.asked)
    assert isinstance(asked, Join)
    assert isinstance(announced, AnnounceNode)
    assert announced.address == "http://n9"


async def test_outcome_of_an_earlier_join_does_not_replace_the_announcement(
    world: World, directory: Directory
) -> None:
    """Both joins have the same request id, and the earlier one is decided first."""
    log = Log(None, None)

    def decide_what_came_first() -> None:
        if world.image.node("n9") is None:
            earlier = replace(join(9), host_id="host-1", address="http://before")
            world.apply(earlier, "join-1")

    log.on_asked = decide_what_came_first
    await admit(directory("n9"), ADVERTISED, await world.follower(), log, Stop())
    assert [type(envelope.command) for envelope in log.asked] == [Join, AnnounceNode]


EXPIRED = Rejection("request_id_expired", "The request id is too old.")


@pytest.mark.parametrize("rejection", [REUSED, EXPIRED])
async def test_join_is_sent_again_under_a_new_request_id(
    world: World, directory: Directory, rejection: Rejection
) -> None:
    log = Log(NotTakenError("join-1", rejection), None)
    await admit(directory("n9"), ADVERTISED, await world.follower(), log, Stop())
    first, second = (envelope.request_id for envelope in log.asked)
    assert first == "join-1" != second
    assert all(isinstance(envelope.command, Join) for envelope in log.asked)


async def test_request_id_after_an_expired_one_is_later_than_the_horizon(
    world: World, directory: Directory
) -> None:
    """A wrong clock has raised the horizon far above ids of the present time."""
    far_ms = 4_000_000_000_000
    refused = replace(EXPIRED, details={"horizon_ms": str(far_ms)})
    for node_id in ("n9", "n1"):
        log = Log(NotTakenError("old", refused), None)
        await admit(directory(node_id), ADVERTISED, await world.follower(), log, Stop())
        assert time_ms(log.asked[1].request_id) > far_ms


async def test_node_whose_new_request_ids_expire_ends_with_the_reason(
    world: World, directory: Directory
) -> None:
    """The clock of the node is wrong."""
    log = Log(*(NotTakenError(f"join-{n}", EXPIRED) for n in range(RENEWALS + 1)))
    with pytest.raises(JoinRejected, match="too old"):
        await admit(directory("n9"), ADVERTISED, await world.follower(), log, Stop())


async def test_node_whose_join_was_cancelled_ends_with_the_reason(
    world: World, directory: Directory
) -> None:
    world.apply(replace(join(9), host_id="host-1"), "join-n9")
    mine = directory("n9")
    waiting = asyncio.create_task(wait_for_membership(mine, await world.follower(), Stop()))
    world.apply(Cancel("join-n9"))
    text = r"'n9' did not become a member \(request .*, join.* cancelled .* cancelled by .*new STELE_NODE_ID"
    with pytest.raises(JoinRejected, match=text):
        await waiting
    assert not mine.identity.was_member


async def test_node_whose_join_was_rolled_back_ends_with_the_reason(
    world: World, directory: Directory
) -> None:
    world.start_join()
    world.fence()
    world.apply(Rollback(1, "join-n4", "its disk is full"))
    world.advance()
    world.advance()
    with pytest.raises(
        JoinRejected, match=r"join.* failed epoch \d+: Rolled back: its disk is full"
    ):
        await wait_for_membership(directory("n4"), await world.follower(), Stop())


async def test_former_member_is_not_ended_as_a_failed_join(
    world: World, directory: Directory
) -> None:
    mine = directory("n1")
    await wait_for_membership(mine, await world.follower(), Stop())
    assert mine.identity.was_member
    leave(world, "n1")
    follower = await world.follower()
    assert not join_ended(follower.image, mine.identity)
    out = expelled(follower.image, "n1")
    assert out is not None and out.wanted and "leave" in out.message


async def test_member_that_left_before_it_recorded_membership_does_not_fail(
    world: World, directory: Directory
) -> None:
    leave(world, "n1")
    mine = directory("n1")
    await wait_for_membership(mine, await world.follower(), Stop())
    assert mine.identity.was_member


def leave(world: World, node_id: str) -> None:
    """Remove the node with all steps, after a fourth node has joined."""
    world.start_join()
    while world.image.topology.transitions:
        world.advance()
    world.apply(Leave(node_id), "leave")
    world.open("leave")
    while world.image.topology.transitions:
        world.advance("leave")


async def test_build_without_a_recorded_enabled_feature_fails_to_start(
    world: World, tmp_path: Path
) -> None:
    mine = boot(tmp_path, "n1", "demo")
    follower, stop = await world.follower(), Stop()
    features = FeaturesImage(enabled=("tablets",))
    follower.fold.image = replace(follower.image, features=features)
    noting = asyncio.create_task(keep_synced(mine, follower, stop))
    await until(lambda: mine.identity.enabled_features == ("tablets",), "the note")
    stop.request("the test is over")
    await noting
    with pytest.raises(ConfigurationError, match="has enabled tablets, which this build lacks"):
        boot(tmp_path, "n1", "demo")
    assert boot(tmp_path, "n1", "demo", supported=frozenset({"tablets"})).identity.boots == 2


def test_row_with_more_features_than_the_build_supports_claims_too_much() -> None:
    row = Node(node_id="n9", address="a", dc="dc1", rack="r9", num_tokens=8)
    assert not claims_too_much(None, ADVERTISED)
    assert not claims_too_much(row, replace(ADVERTISED, supported_features=("tablets",)))
    assert claims_too_much(replace(row, supported_features=("tablets",)), ADVERTISED)


@pytest.mark.parametrize("place", [{"dc": "dc2"}, {"rack": "r1"}])
def test_member_fails_to_start_with_another_dc_or_rack(place: dict[str, str]) -> None:
    row = Node(node_id="n9", address="a", dc="dc1", rack="r9", num_tokens=8)
    check_place(None, ADVERTISED)
    check_place(row, ADVERTISED)
    with pytest.raises(JoinRejected, match=r"is in dc1/r9.*STELE_DC=dc1 STELE_RACK=r9"):
        check_place(row, replace(ADVERTISED, **place))


def test_member_fails_to_start_with_another_number_of_shards() -> None:
    row = Node(node_id="n9", address="a", dc="dc1", rack="r9", num_tokens=8, shards=4)
    check_place(row, replace(ADVERTISED, shards=4))
    with pytest.raises(JoinRejected, match=r"has 4 shards.*started with 1.*STELE_SHARDS=4"):
        check_place(row, ADVERTISED)


def test_changed_number_of_tokens_is_logged_and_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    row = Node(node_id="n9", address="a", dc="dc1", rack="r9", num_tokens=4)
    note_tokens(row, ADVERTISED)
    assert "STELE_NUM_TOKENS counts when a node joins" in capsys.readouterr().out


RIGHT = Advertised(address="http://n1", dc="dc1", rack="r1", num_tokens=8)


@pytest.mark.parametrize(
    ("known", "joins", "first"),
    [
        ({}, "auto", "recognise"),
        ({"host_id": unclaimed("host-1")}, "auto", "admit"),
        ({"supported_features": (*RIGHT.supported_features, "more")}, "auto", "admit"),
        (None, "auto", "admit"),
        (None, "no", "recognise"),
    ],
    ids=["member", "claims a free row", "older build", "joins", "may not join"],
)
async def test_node_that_claims_too_much_announces_itself_before_it_serves(
    known: dict[str, Any] | None,
    joins: Literal["auto", "no"],
    first: str,
    directory: Directory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other processes do not wait: a member serves although its announcement is rejected."""
    row = Node(
        node_id="n1",
        address=RIGHT.address,
        dc=RIGHT.dc,
        rack=RIGHT.rack,
        num_tokens=RIGHT.num_tokens,
        state=NodeState.NORMAL,
        supported_features=RIGHT.supported_features,
        host_id="host-1",
    )
    nodes = {} if known is None else {"n1": replace(row, **known)}
    done, image = list[str](), Image(membership=MembershipImage(Map(nodes)))

    def noted(name: str) -> Callable[..., Any]:
        async def note(*_: object) -> None:
            done.append(name)

        return note

    gate: Any = SimpleNamespace(
        reach=noted("reach"), recognise=noted("recognise"), check_host=lambda _: None
    )
    followed: Any = SimpleNamespace(follower=SimpleNamespace(image=image), caught_up=None)
    names = ("newest_ack", "admit", "wait_for_membership", "keep_synced", "keep_announced")
    for name in names:
        monkeypatch.setattr(f"stele.agent.member.{name}", noted(name))
    monkeypatch.setattr("stele.agent.member.Commander", lambda *_: nullcontext())
    settings = AgentSettings(join=joins)
    member = Membership(settings, directory("n1"), RIGHT, gate, followed)
    async with member.admitting(Stop()):
        await until(lambda: "keep_synced" in done, "the node to be known")
    assert done[:3] == ["reach", "newest_ack", first]
    assert done[-3:] == ["recognise", "wait_for_membership", "keep_synced"]
    assert "admit" in done


@pytest.mark.parametrize(
    ("other", "code"), [({"shards": 4}, "shards_"), ({"rack": "r1"}, "place_")]
)
@pytest.mark.parametrize("joins", ["auto", "no"])
async def test_node_ends_if_its_request_differs_from_its_settings(
    joins: Literal["auto", "no"],
    other: dict[str, Any],
    code: str,
    directory: Directory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process or an earlier start sent the request. A member could not restart with these settings."""
    row = Node(node_id="n9", address="http://n9", dc="dc1", rack="r9", num_tokens=8)
    after = Image(membership=MembershipImage(Map({"n9": replace(row, **other)})))
    follower = SimpleNamespace(image=Image())

    async def reach(*_: object) -> None:
        assert follower.image.node("n9") is None

    async def asked_for(*_: object) -> None:
        follower.image = after

    gate: Any = SimpleNamespace(reach=reach, recognise=asked_for, check_host=lambda _: None)
    monkeypatch.setattr("stele.agent.member.admit", asked_for)
    monkeypatch.setattr("stele.agent.member.Commander", lambda *_: nullcontext())
    followed: Any = SimpleNamespace(follower=follower, caught_up=None)
    settings, stop = AgentSettings(join=joins), Stop()
    member = Membership(settings, directory("n9"), ADVERTISED, gate, followed)
    with pytest.raises(JoinRejected, match=code + "changed"):
        async with member.admitting(stop):
            await until(lambda: stop.requested, "the node to end")


async def test_node_keeps_running_if_the_log_is_lost_before_admission(
    directory: Directory,
) -> None:
    """The log may be recovered from this node. The process restarts after the recovery."""
    gone, asked = AnchorLostError(3, "it is gone"), list[bool]()

    async def reach(*_: object) -> None:
        asked.append(True)
        raise gone

    gate: Any = SimpleNamespace(reach=reach)
    followed: Any = SimpleNamespace(follower=SimpleNamespace(failure=gone), caught_up=None)
    stop = Stop()
    member = Membership(AgentSettings(), directory("n9"), ADVERTISED, gate, followed)
    async with member.admitting(stop):
        await until(lambda: bool(asked), "the node to look")
        await asyncio.sleep(0.05)
        assert not stop.requested
        stop.request("the log is recovered")
