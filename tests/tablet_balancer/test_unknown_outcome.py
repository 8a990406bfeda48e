"""Commands of the balancer whose outcome is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stele.domain.balancer.proposals import Proposal
from stele.domain.balancer.stuck import Stuck
from stele.domain.commands import Envelope, Outcome
from stele.log.codec import encode_ack
from stele.tablet_balancer import balancer as balancer_module
from stele.tablet_balancer.balancer import Balancer
from stele.tablet_balancer.loads import Loads
from tests.coordinator.test_tablets import with_table
from tests.domain.ack_of import ack_of


async def test_command_that_timed_out_keeps_its_id_and_delays_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = with_table("a1 b1 c1", 4).image
    sent, answers = list[Envelope](), False

    async def submit(envelope: Envelope, _timeout_s: float) -> Outcome:
        sent.append(envelope)
        if not answers:
            raise TimeoutError
        request_id, epoch = envelope.request_id, image.epoch
        return Outcome(request_id=request_id, applied=True, epoch=epoch, state_id=b"")

    async def wait_for_epoch(_epoch: int, _timeout_s: float) -> None:
        return

    two = Proposal(stuck=(Stuck("first", "no room"), Stuck("second", "no room")))
    monkeypatch.setattr(balancer_module, "proposal", lambda *_: two)
    follower = SimpleNamespace(
        image=image, failure=None, listen=lambda _: None, wait_for_epoch=wait_for_epoch
    )
    followed: Any = SimpleNamespace(
        follower=follower, caught_up=SimpleNamespace(is_set=lambda: True)
    )
    settings: Any = SimpleNamespace(heartbeat_timeout_s=0.0, balance_interval_s=1.0)
    commander: Any = SimpleNamespace(horizon_ms=-1, submit=submit)
    balancer = Balancer(settings, followed, commander, Loads())
    balancer.on_ack(encode_ack(ack_of(image, "a1")))
    await balancer._round()
    await balancer._round()
    assert len(sent) == 2 and sent[0] == sent[1], "the next command waits for the first outcome"
    answers = True
    await balancer._round()
    assert sent[2] == sent[0]
    await balancer._round()
    assert [envelope.command for envelope in sent[3:]] == [each for each, _ in two.commands()]
