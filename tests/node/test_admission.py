"""Joining and announcing: asked once, until the outcome is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stele.domain.commands import (
    AnnounceNode,
    Envelope,
    Join,
    Outcome,
    Rejection,
    Replace,
    Rollback,
)
from stele.domain.names import NodeState
from stele.domain.requests.ids import parse
from stele.log.commander import NotTakenError
from stele.node.admission import Advertised, JoinRejected, admit
from stele.node.identity import Identity, boot
from stele.runtime.service import Stop
from tests.node.world import World

ADVERTISED = Advertised(address="http://n9", dc="dc1", rack="r9", num_tokens=8)


class Log:
    """Answers what it was told to, in order; an exception is raised."""

    def __init__(self, *answers: Rejection | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[Envelope] = []

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        self.asked.append(envelope)
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


def identity(node_id: str) -> Identity:
    return Identity(node_id, "demo", "host-1", 1, "join-1")


async def test_an_unknown_node_asks_under_one_id_until_it_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.node.admission.RETRY_S", 0.001)
    not_founded = NotTakenError("join-1", Rejection("not_founded", "There is no cluster."))
    log = Log(TimeoutError(), not_founded, None)
    await admit(identity("n9"), ADVERTISED, await world.follower(), log, Stop())
    assert [envelope.request_id for envelope in log.asked] == ["join-1"] * 3
    command = log.asked[0].command
    assert isinstance(command, Join)
    assert (command.address, command.rack, command.num_tokens) == ("http://n9", "r9", 8)
    assert command.host_id == "host-1"


async def test_a_node_that_is_to_replace_another_asks_for_its_place(world: World) -> None:
    log = Log(None)
    advertised = replace(ADVERTISED, replaced_id="n2")
    await admit(identity("n9"), advertised, await world.follower(), log, Stop())
    command = log.asked[0].command
    assert log.asked[0].request_id == "join-1"
    assert isinstance(command, Replace)
    assert (command.replaced_id, command.node_id, command.rack) == ("n2", "n9", "r9")
    assert command.host_id == "host-1"


async def test_a_request_that_was_not_taken_ends_it_with_the_reason(world: World) -> None:
    log = Log(NotTakenError("join-1", Rejection("request_id_expired", "Too old.", "Ask anew.")))
    with pytest.raises(JoinRejected, match=r"Too old. Ask anew. \(request_id_expired"):
        await admit(identity("n9"), ADVERTISED, await world.follower(), log, Stop())


def test_a_node_that_was_refused_asks_under_another_id_when_it_starts_again(tmp_path: Path) -> None:
    """What was refused stays refused under its id, though the operator has mended the reason."""
    first = boot(tmp_path, "n9", "demo")
    before = first.identity.join_request_id
    assert boot(tmp_path, "n9", "demo").identity.join_request_id == before
    first.join_again()
    again = boot(tmp_path, "n9", "demo").identity
    assert again.join_request_id != before
    assert parse(again.join_request_id) is not None


async def test_a_rejection_ends_it_with_the_reason(world: World) -> None:
    log = Log(Rejection("address_in_use", "Address belongs to 'n1'.", "Give it its own."))
    with pytest.raises(JoinRejected, match=r"belongs to 'n1'. Give it its own. \(address_in_use"):
        await admit(identity("n9"), ADVERTISED, await world.follower(), log, Stop())


async def test_a_member_that_moved_announces_itself(world: World) -> None:
    log = Log(None)
    await admit(identity("n1"), ADVERTISED, await world.follower(), log, Stop())
    command = log.asked[0].command
    assert isinstance(command, AnnounceNode)
    assert (command.node_id, command.address) == ("n1", "http://n9")
    assert command.host_id == "host-1"


async def test_a_node_that_has_left_says_nothing(world: World) -> None:
    world.start_join()
    world.fence()
    world.apply(Rollback(1, "join-n4", "why"))
    world.advance()
    world.advance()
    node = world.image.node("n4")
    assert node is not None and node.state is NodeState.LEFT
    await admit(identity("n4"), ADVERTISED, await world.follower(), Log(), Stop())
