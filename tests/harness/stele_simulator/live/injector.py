"""Carries the plan of faults out on a site."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

from stele_simulator.live.faults import Fault, FaultKind, Role, rules_of
from stele_simulator.live.history import History, Hit
from stele_simulator.live.site import Site


class FaultInjector:
    """Faults under way; each ends by itself."""

    def __init__(self, site: Site, history: History) -> None:
        self.done = 0
        self._site = site
        self._history = history

    async def make(self, faults: Iterable[Fault]) -> None:
        """Every fault at its time; returns when the last one is over."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._at_its_time(fault))

    async def end(self) -> None:
        """No process is paused and no connection disturbed any more."""
        await self._site.wake_all()

    async def _at_its_time(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at_s - self._history.now()))
        names = self._site.names(fault.role)
        if not names:
            return
        name = "" if fault.role is Role.EVERYBODY else fault.pick(names)
        self.done += 1
        began = self._history.now()
        self._history.event(f"{name or 'everybody'}: {fault.kind} for {fault.lasts_s:.1f} s")
        await self._carry_out(fault, name)
        ended = self._history.now()
        self._history.add(
            Hit(began=began, ended=ended, role=fault.role, name=name, kind=fault.kind)
        )

    async def _carry_out(self, fault: Fault, name: str) -> None:
        match fault.kind:
            case FaultKind.KILL | FaultKind.GONE:
                self._site.kill(name)
                await asyncio.sleep(fault.lasts_s)
                await self._site.revive(name)
            case FaultKind.PAUSE | FaultKind.STOP:
                self._site.signal(name, signal.SIGSTOP)
                await asyncio.sleep(fault.lasts_s)
                self._site.signal(name, signal.SIGCONT)
            case _:
                brokers, services = map(self._site.names, (Role.BROKER, Role.EVERYBODY))
                rules = rules_of(fault, name, brokers, services)
                self._site.proxies.impose(rules)
                await asyncio.sleep(fault.lasts_s)
                self._site.proxies.lift(rules)
