"""Those who ask for changes: commands through either metadata-log and through Kafka, valid and invalid."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp
import msgspec

from stele.domain.commands import (
    AnyCommand,
    Cancel,
    CreateKeyspace,
    DropKeyspace,
    EnableFeatures,
    Envelope,
    Join,
    Leave,
    Outcome,
    Remove,
    SetSetting,
)
from stele.domain.image import Image
from stele.domain.names import NodeState, RequestStatus
from stele.log.commander import Commander, NotTakenError
from stele.metadata_log.api import OutcomeAnswer
from stele.runtime.request_ids import new_request_id
from stele.sim.live.history import History, Question
from stele.sim.live.site import ANSWER_TIMEOUT_S, Site

THROUGH_KAFKA: Final = "commands"
GIVE_UP_S: Final = 90.0
"""A command is asked again for so long; then its outcome is left open."""
RETRY_PAUSE_S: Final = 0.2
MEAN_PAUSE_S: Final = 0.6
TOPOLOGY_PAUSE_S: Final = 2.0
FOLLOW_S: Final = 0.2
SEEN_WITHIN_S: Final = 60.0
FINISHED_WITHIN_S: Final = 120.0
MOST_MEMBERS: Final = 5
LEAST_MEMBERS: Final = 3
OTHER_KEYSPACES: Final = 3
DEATHS: Final = 0.3
"""Of so many changes of the topology one is that a node dies for good."""
DEAD_TRIES: Final = 5
"""Of an operator with a dead node: what cannot be done under the faults of the moment is asked for again."""


class Asker:
    """Puts a question until it is answered, always under the same request id, and records it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        commander: Commander,
        urls: Sequence[str],
        history: History,
        seed: int,
    ) -> None:
        self._http = http
        self._commander = commander
        self.urls = list(urls)
        self._history = history
        self._chance = random.Random(seed)

    async def ask(self, command: AnyCommand, reason: str) -> Outcome | None:
        """What became of it; None when nobody told within ``GIVE_UP_S``."""
        envelope = Envelope(
            request_id=new_request_id(),
            command=command,
            actor="admin",
            reason=reason,
            origin="sim live",
        )
        began = self._history.now()
        by_kafka = self._chance.random() < 1 / (1 + len(self.urls))
        outcome = await (self._by_kafka(envelope) if by_kafka else self._by_http(envelope))
        self._history.add(
            Question(
                began=began,
                ended=self._history.now(),
                envelope=envelope,
                through=THROUGH_KAFKA if by_kafka else "http",
                outcome=outcome,
            )
        )
        return outcome

    async def _by_kafka(self, envelope: Envelope) -> Outcome | None:
        try:
            return await self._commander.submit(envelope, GIVE_UP_S)
        except (TimeoutError, NotTakenError):
            return None

    async def _by_http(self, envelope: Envelope) -> Outcome | None:
        body, loop = msgspec.json.encode(envelope), asyncio.get_running_loop()
        end_s = loop.time() + GIVE_UP_S
        while loop.time() < end_s:
            outcome = await self._once(self._chance.choice(self.urls), body)
            if outcome is not None:
                return outcome
            await asyncio.sleep(RETRY_PAUSE_S)
        return None

    async def _once(self, url: str, body: bytes) -> Outcome | None:
        try:
            async with self._http.post(
                f"{url}/v1/commands",
                data=body,
                timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            ) as answer:
                given = await answer.read()
                if answer.status not in (200, 409):
                    return None
        except (aiohttp.ClientError, TimeoutError):
            return None
        told = msgspec.json.decode(given, type=OutcomeAnswer)
        return Outcome(
            request_id=told.request_id,
            applied=told.applied,
            epoch=told.epoch,
            state_id=bytes.fromhex(told.state_id),
            rejection=told.rejection,
        )


class Admins:
    """Random changes for as long as ``running``: several admins of small things, one of the topology."""

    def __init__(
        self,
        asker: Asker,
        image: Callable[[], Image],
        site: Site,
        history: History,
        seed: int,
    ) -> None:
        self.running = True
        self._asker = asker
        self._image = image
        self._site = site
        self._history = history
        self._chance = random.Random(seed)
        self._made = 0

    async def change_things(self) -> None:
        """Settings, keyspaces, and requests that must be refused."""
        while self.running:
            await asyncio.sleep(self._chance.expovariate(1 / MEAN_PAUSE_S))
            await self._asker.ask(self._some_command(), "change")

    async def change_topology(self) -> None:
        """Joins and leaves, some of which are cancelled again, and deaths, one after the other."""
        while self.running:
            await asyncio.sleep(self._chance.expovariate(1 / TOPOLOGY_PAUSE_S))
            members = [
                node.node_id
                for node in self._image().membership.nodes.values()
                if node.state is NodeState.NORMAL
            ]
            few, many = len(members) <= LEAST_MEMBERS, len(members) >= MOST_MEMBERS
            if not few and self._chance.random() < DEATHS:
                await self._dies(self._chance.choice(sorted(members)))
                continue
            if few or (not many and self._chance.random() < 0.5):
                request_id = await self._join()
            else:
                request_id = await self._leave(self._chance.choice(sorted(members)))
            if request_id and self._chance.random() < 0.25:
                await asyncio.sleep(self._chance.random() * 3)
                await self._asker.ask(Cancel(target=request_id), "changed my mind")
            if request_id:
                await self._see_finished(request_id)

    async def _see_finished(self, request_id: str) -> None:
        await self._wait(lambda: _finished(self._image(), request_id), FINISHED_WITHIN_S)

    async def _dies(self, name: str) -> None:
        """A node is gone for good; until it is removed or replaced nobody else joins or leaves."""
        node = self._image().node(name)
        assert node is not None
        self._history.event(f"{name} dies for good")
        await self._site.kill_for_good(name)
        for _ in range(DEAD_TRIES):
            copies = [min(r.values()) for r in self._image().schema.replications().values()]
            if min(copies) > 1 and self._chance.random() < 0.5:
                request_id = await self._replace(name, node.rack)
            else:
                request_id = await self._remove(name)
            if request_id:
                await self._see_finished(request_id)
            found = self._image().node(name)
            if found is not None and found.state is NodeState.LEFT:
                return

    async def _join(self) -> str:
        name = await self._site.add_node()
        self._history.event(f"{name} starts and asks to join")
        return await self._request_of(name)

    async def _replace(self, dead: str, rack: str) -> str:
        name = await self._site.replace_node(dead, rack)
        self._history.event(f"{name} starts and asks to replace {dead}")
        return await self._request_of(name)

    async def _remove(self, name: str) -> str:
        """By force, since some keyspaces have one copy; what is written is in one of three."""
        self._history.event(f"{name} is to be removed")
        outcome = await self._asker.ask(Remove(node_id=name, force=True), "its machine is gone")
        return outcome.request_id if outcome is not None and outcome.applied else ""

    async def _request_of(self, name: str) -> str:
        known = lambda: self._image().node(name) is not None  # noqa: E731
        if not await self._wait(known, SEEN_WITHIN_S):
            return ""
        node = self._image().node(name)
        assert node is not None
        return node.request_id

    async def _leave(self, name: str) -> str:
        self._history.event(f"{name} is asked to leave")
        outcome = await self._asker.ask(Leave(node_id=name), "too many")
        return outcome.request_id if outcome is not None and outcome.applied else ""

    async def _wait(self, true: Callable[[], bool], limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not true():
            if loop.time() > end_s:
                return False
            await asyncio.sleep(FOLLOW_S)
        return True

    def _some_command(self) -> AnyCommand:
        self._made += 1
        others = sorted(k for k in self._image().schema.ids if k.startswith("other"))
        invalid: list[AnyCommand] = [
            Leave(node_id="nobody"),
            Cancel(target="no-such-request"),
            CreateKeyspace(name="data", replication={"dc1": 3}),
            DropKeyspace(name="never-made"),
            EnableFeatures(features=("no_such_feature",)),
            Join(node_id="stranger", cluster="elsewhere", address="http://x", dc="dc1", rack="r1"),
        ]
        dice = self._chance.random()
        if dice < 0.25:
            return self._chance.choice(invalid)
        if dice < 0.45:
            if len(others) >= OTHER_KEYSPACES:
                return DropKeyspace(name=self._chance.choice(others))
            rf = self._chance.randint(1, 3)
            return CreateKeyspace(name=f"other{self._made}", replication={"dc1": rf})
        return SetSetting(name=f"setting{self._chance.randrange(4)}", value=f"value{self._made}")


def _finished(image: Image, request_id: str) -> bool:
    """Also true when it was forgotten: it is told for a long time after its end."""
    request = image.request(request_id)
    return request is None or request.status not in (RequestStatus.PENDING, RequestStatus.RUNNING)
