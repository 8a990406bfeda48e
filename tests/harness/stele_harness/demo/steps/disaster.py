"""The topic of the log is deleted under load, with all that it held; the log is recovered from the archive."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import aiohttp
import msgspec
from confluent_kafka.admin import AdminClient

from stele.cli.errors import CliError
from stele.domain.commands import Envelope, SetSetting
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.runtime.answers.catch_up import RecoveredAnswer
from stele.runtime.answers.metadata_log import OutcomeAnswer
from stele.runtime.kafka import ensure_topics
from stele.runtime.request_ids import new_request_id
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import CALL_TIMEOUT_S

WRITERS = 4
PAUSE_S = 0.01
FIRST_COMMITS = 300
WITHIN_S = 300.0
RECOVER_S = 600.0
KAFKA_S = 150.0


@dataclass(slots=True)
class Commits:
    """Commands that were acknowledged: the envelope, and the epoch that it became."""

    acknowledged: list[tuple[Envelope, int]] = field(default_factory=list)
    unknown: int = 0
    stopped: bool = False
    longest_gap_s: float = 0.0
    last_s: float = 0.0

    def acknowledge(self, envelope: Envelope, epoch: int) -> None:
        now_s = time.monotonic()
        if self.last_s:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s
        self.acknowledged.append((envelope, epoch))


async def run(scene: Scene) -> None:
    commits, timeline = Commits(), scene.timeline
    writers = [asyncio.create_task(_commit(scene, commits, n)) for n in range(WRITERS)]
    try:
        await scene.site.until(
            f"{FIRST_COMMITS} acknowledged commands", lambda: _enough(commits), WITHIN_S
        )
        before = await scene.site.topology()
        began_s, known = time.monotonic(), len(commits.acknowledged)
        timeline.note(
            "the topic of the log is deleted, and made anew with nothing in it", "bold red"
        )
        await asyncio.to_thread(_lose_topic, scene.site.stack().environment)
        await scene.site.until("metadata-log to notice", lambda: _refuses(scene), WITHIN_S)
        noticed_s = time.monotonic() - began_s
        timeline.note(f"noticed after {noticed_s:.1f} s: nothing is acknowledged any more")
        answer = await _recover(scene)
        timeline.note(
            f"`stele recover`: log {answer.log_id} goes on after epoch {answer.last_epoch} of log"
            f" {before.log_id}"
        )
        await scene.site.until(
            "every service to be well in the recovered log",
            lambda: _well(scene, answer),
            WITHIN_S,
        )
        took_s = time.monotonic() - began_s
        await scene.site.until(
            "commands to be acknowledged again",
            lambda: _more_than(commits, answer.last_epoch),
            WITHIN_S,
        )
    finally:
        commits.stopped = True
        await asyncio.gather(*writers)
    lost = await _lost(scene, commits)
    timeline.note(
        f"{known} commands were acknowledged before, {len(commits.acknowledged) - known} after; none was for"
        f" {commits.longest_gap_s:.1f} s; {commits.unknown} outcomes were unknown for a while"
    )
    for name, value in (
        ("noticed_s", noticed_s),
        ("recovered_s", took_s),
        ("commands_acknowledged", len(commits.acknowledged)),
        ("commands_lost", len(lost)),
        ("longest_gap_of_commands_s", commits.longest_gap_s),
    ):
        timeline.figure(name, value)
    timeline.check(
        "no acknowledged command is lost",
        not lost and known >= FIRST_COMMITS,
        "; ".join(lost[:3])
        or f"{len(commits.acknowledged)} commands have the outcome that was told",
    )
    timeline.check(
        "no epoch is lost that anybody had read",
        answer.known_epoch == answer.last_epoch,
        f"epochs 1 to {answer.last_epoch} are there, and nobody knew a later one",
    )


async def _commit(scene: Scene, commits: Commits, number: int) -> None:
    """One command after the other, each under its own id until its outcome is known."""
    count = 0
    while not commits.stopped:
        count += 1
        envelope = Envelope(
            request_id=new_request_id(),
            command=SetSetting(f"drill-{number}", str(count)),
            actor="drill",
            reason="load",
        )
        while not commits.stopped:
            outcome = await _ask(scene, envelope)
            if outcome is not None:
                commits.acknowledge(envelope, outcome.epoch)
                break
            commits.unknown += 1
            await asyncio.sleep(0.2)
        await asyncio.sleep(PAUSE_S)


async def _ask(scene: Scene, envelope: Envelope) -> OutcomeAnswer | None:
    """The outcome; None when there was no answer, or none that decides."""
    url = scene.site.url("metadata-log", "/v1/commands")
    limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    try:
        body = msgspec.json.encode(envelope)
        async with scene.site.http.post(url, data=body, timeout=limit) as answer:
            content = await answer.read()
            if answer.status == 200:
                return msgspec.json.decode(content, type=OutcomeAnswer)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
        return None
    return None


async def _enough(commits: Commits) -> bool:
    return len(commits.acknowledged) >= FIRST_COMMITS


async def _more_than(commits: Commits, epoch: int) -> bool:
    return commits.acknowledged[-1][1] > epoch


async def _refuses(scene: Scene) -> bool:
    async with scene.site.http.get(scene.site.url("metadata-log", "/healthz")) as answer:
        return answer.status != 200


def _lose_topic(environment: dict[str, str]) -> None:
    """As when its disks are gone: the topic is there again, and empty."""
    brokers, cluster = Brokers(environment["STELE_KAFKA_BOOTSTRAP"]), environment["STELE_CLUSTER"]
    topic = flow_topic(cluster, "epochs")
    admin = AdminClient(brokers.client())
    admin.delete_topics([topic])[topic].result(KAFKA_S)
    ensure_topics(brokers, cluster)


async def _recover(scene: Scene) -> RecoveredAnswer:
    """``stele recover``, as an operator types it. Raises CliError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stele.cli", "recover", "--json", "--reason", "drill"),
        *("--dir", str(scene.directory), "--timeout", str(RECOVER_S)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), RECOVER_S)
    if process.returncode:
        raise CliError(f"`stele recover` failed: {err.decode()[-500:]}")
    return msgspec.json.decode(out, type=RecoveredAnswer)


async def _well(scene: Scene, answer: RecoveredAnswer) -> bool:
    """Whether each process says that it is well, at an epoch of the recovered log."""
    for service in scene.site.stack().services:
        async with scene.site.http.get(f"{service.url}/healthz") as found:
            if found.status != 200:
                return False
            health = msgspec.json.decode(await found.read())
            if health["epoch"] < answer.epoch:
                return False
    return True


async def _lost(scene: Scene, commits: Commits) -> list[str]:
    """Commands whose outcome has changed since. The query for each uses its request id."""
    lost = list[str]()
    for envelope, epoch in commits.acknowledged:
        outcome = await _ask(scene, envelope)
        if outcome is None or outcome.epoch != epoch or not outcome.applied:
            lost.append(f"{envelope.request_id}: epoch {epoch} was told, now {outcome}")
    return lost
