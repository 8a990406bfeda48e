"""A balancer that has read no acks for a while plans nothing until it knows the live nodes again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stele.domain.balancer.proposals import Proposal
from stele.log.codec import encode_ack
from stele.tablet_balancer import balancer as module
from stele.tablet_balancer.balancer import Balancer
from stele.tablet_balancer.loads import Loads
from tests.coordinator.test_tablets import with_table
from tests.domain.ack_of import ack_of

TIMEOUT_S = 5.0


async def test_balancer_plans_nothing_until_a_timeout_after_an_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = with_table("a1 b1 c1", 4).image
    follower = SimpleNamespace(image=image, failure=None, listen=lambda _: None)
    followed: Any = SimpleNamespace(
        follower=follower, caught_up=SimpleNamespace(is_set=lambda: True)
    )
    settings: Any = SimpleNamespace(heartbeat_timeout_s=TIMEOUT_S, balance_interval_s=1.0)
    commander: Any = SimpleNamespace(horizon_ms=-1)
    now_s, plans, acks = 1000.0, list[float](), 0

    def planned(*_: object) -> Proposal:
        plans.append(now_s)
        return Proposal()

    async def reads_until(end_s: float) -> None:
        nonlocal now_s, acks
        while now_s < end_s:
            acks += 1
            balancer.on_ack(encode_ack(ack_of(image, "a1", sequence=acks)))
            await balancer._round()
            now_s += 0.5

    clock = SimpleNamespace(monotonic=lambda: now_s, time_ns=lambda: 0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "proposal", planned)
    balancer = Balancer(settings, followed, commander, Loads())
    await reads_until(1010.0)
    assert plans[0] == 1000.0 + TIMEOUT_S
    plans.clear()
    now_s = 1085.0
    await balancer._round()
    await reads_until(1095.0)
    assert plans[0] == 1085.0 + TIMEOUT_S
