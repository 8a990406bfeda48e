"""``stele log verify``: every replica's archive is read and checked, and held against the topic."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from stele.cli.commands.backup import known_urls, run_work
from stele.cli.errors import Exit
from stele.cli.history_search import Progress
from stele.cli.kafka import told_kafka
from stele.cli.options import Json, TypedDirectory
from stele.cli.output import console, counted, duration, print_value_as_json
from stele.log.archive.records import Archived
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.backup import back_up
from stele.log.archive_store.replay import first_epoch
from stele.log.archive_store.stored import StoredArchive, stored_archive
from stele.log.archive_store.verify import Verdict, verify
from stele.log.blobs.folder import FolderStore
from stele.log.brokers import Brokers
from stele.log.chain import LOG_ID
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.log.port import LogPast, Record
from stele.runtime.answers.catch_up import CheckAnswer, CheckState
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.replica_source import replica_source

READ_RECORDS = 2000
POLL_S = 0.3
LARGEST = (1 << 62) - 1
PERCENTS: Final = Number(gte=1, lte=100)
FOLDER_S = 60.0


class Verified(msgspec.Struct, frozen=True):
    """One replica: what its archive holds, and how the topic differs from it. ``why``: it gave nothing."""

    url: str
    verdict: Verdict | None
    compared: int
    """Epochs that the topic still has, and that are the same there unless ``differs`` says otherwise."""
    differs: tuple[str, ...]
    why: str = ""

    @property
    def is_well(self) -> bool:
        return self.verdict is not None and not self.verdict.flaws and not self.differs


def verify_log(
    *,
    catch_up: Annotated[tuple[str, ...], Parameter(name="--catch-up", negative="")] = (),
    topic: Annotated[bool, Parameter(name="--topic", negative="--no-topic")] = True,
    copy: Annotated[bool, Parameter(name="--copy", negative="")] = False,
    percent: Annotated[int, Parameter(name="--percent", validator=PERCENTS)] = 25,
    directory: TypedDirectory = None,
    json: Json = Json(),  # noqa: B008
) -> int:
    """Have every catch-up replica read all its epochs and snapshots, and check them.

    Every epoch must follow from the one before it, by state ids and by its facts; they must lead to the state
    of each snapshot; and what the topic still has must be what the archives have. Exit status 1 when
    something is wrong. Replicas check where the files are, at the same time; Ctrl-C ends the waiting and not
    their check.

    Args:
        catch_up: Address of a replica; may be repeated. Else those of --dir, else STELE_CATCH_UP_URLS, else
            those of the stack in STELE_DIR or .stele.
        topic: Hold the archives against the topic too, which needs STELE_KAFKA_BOOTSTRAP or the stack.
        copy: Copy each archive into a temporary folder here and check that: it trusts no replica's word.
        percent: So much of a processor each replica gives to it.
        directory: Directory of a local stack.
    """
    began_s, found = time.perf_counter(), list[Verified]()
    kafka = told_kafka(directory) if topic else None
    brokers = None if kafka is None else kafka.brokers
    urls = catch_up or known_urls(directory)
    if copy:
        checks = (partial(_verified_copy, url, brokers) for url in urls)
    else:
        progress = Progress()
        run_work(_begun(urls, percent))
        checks = (partial(_verified, url, brokers, percent, progress) for url in urls)
    for verified in checks:
        found.append(run_work(verified()))
        if not json.as_json:
            _show(found[-1])
    if json.as_json:
        print_value_as_json(found)
    else:
        console().print(f"in {duration(time.perf_counter() - began_s)}")
    return Exit.OK if all(each.is_well for each in found) else Exit.FAILED


async def _begun(urls: Sequence[str], percent: int) -> None:
    """On all of them; whoever cannot now is asked again."""
    catch_up = CatchUp(urls)
    try:
        asked = (catch_up.check(url.rstrip("/"), percent) for url in urls)
        await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await catch_up.close()


async def _verified(
    url: str, brokers: Brokers | None, percent: int, progress: Progress
) -> Verified:
    """By the replica itself."""
    catch_up = CatchUp([url])
    try:
        answer = await _checked(catch_up, url.rstrip("/"), percent, progress)
        if answer.verdict is None:
            return Verified(url, None, 0, (), answer.why)
        if brokers is None:
            return Verified(url, answer.verdict, 0, ())
        about = await (await replica_source(catch_up)).about()
        log = KafkaLog(brokers, flow_topic(about.cluster, "epochs"))
        try:
            begin, end = await log.ends()
            compared, differs = await against_topic(
                _records_of(catch_up, log, begin, end), log, begin, bytes.fromhex(about.log_id)
            )
        finally:
            await log.close()
        return Verified(url, answer.verdict, compared, differs)
    except (CatchUpUnavailable, TimeoutError) as error:
        return Verified(url, None, 0, (), str(error))
    finally:
        progress.end()
        await catch_up.close()


async def _checked(catch_up: CatchUp, url: str, percent: int, progress: Progress) -> CheckAnswer:
    """Once it is done. Raises CatchUpUnavailable."""
    answer = await catch_up.checked(url)
    if answer.state is CheckState.NONE:
        answer = await catch_up.check(url, percent)
    while answer.state is CheckState.RUNNING:
        snapshots = counted(answer.snapshots, "snapshot", "snapshots")
        progress.tell(f"{url}: epoch {answer.epoch} of {answer.last}, {snapshots} compared")
        await asyncio.sleep(POLL_S)
        answer = await catch_up.checked(url)
    return answer


async def _records_of(
    catch_up: CatchUp, log: LogPast, begin: int, end: int
) -> AsyncIterator[list[Archived]]:
    """What a replica has of the epochs that the topic still holds, some at a time."""
    following = await first_epoch(log, begin) if end > begin else 0
    while following:
        try:
            found = await catch_up.records(following, LARGEST)
        except NotArchivedError:
            return
        yield found
        following = found[-1].epoch + 1


async def _pieces(stored: StoredArchive) -> AsyncIterator[list[Archived]]:
    for part in stored.parts:
        yield await stored.piece(part)


async def _verified_copy(url: str, brokers: Brokers | None) -> Verified:
    catch_up = CatchUp([url])
    try:
        with tempfile.TemporaryDirectory(prefix="stele-verify-") as folder:
            store = FolderStore(Path(folder), FOLDER_S)
            source = await replica_source(catch_up)
            await back_up(store, source, made_ms=0, made_from=url, all_snapshots=True)
            stored = await stored_archive(store)
            verdict = await verify(stored)
            about = await source.about()
            if brokers is None:
                return Verified(url, verdict, 0, ())
            log = KafkaLog(brokers, flow_topic(about.cluster, "epochs"))
            try:
                begin, _ = await log.ends()
                compared, differs = await against_topic(
                    _pieces(stored), log, begin, bytes.fromhex(about.log_id)
                )
            finally:
                await log.close()
            return Verified(url, verdict, compared, differs)
    except (CatchUpUnavailable, TimeoutError) as error:
        return Verified(url, None, 0, (), str(error))
    finally:
        await catch_up.close()


async def against_topic(
    pieces: AsyncIterator[list[Archived]], log: LogPast, begin: int, log_id: bytes
) -> tuple[int, tuple[str, ...]]:
    """How many epochs of log ``log_id`` the topic, which begins at ``begin``, has as the archive has them, and
    what differs. Raises TimeoutError, StoreError.
    """
    compared, differs = 0, list[str]()
    async for piece_of in pieces:
        records = [
            record
            for record in piece_of
            if record.value[LOG_ID] == log_id and record.offset >= begin
        ]
        for at in range(0, len(records), READ_RECORDS):
            piece = records[at : at + READ_RECORDS]
            read = await _read(log, piece[0].offset, piece[-1].offset)
            differs += _differences(piece, {record.offset: record.value for record in read})
            compared += len(piece)
    return compared, tuple(differs)


async def _read(log: LogPast, first: int, last: int) -> list[Record]:
    found = list[Record]()
    while first <= last:
        records = await log.read(first, min(READ_RECORDS, last + 1 - first))
        if not records:
            break
        found += records
        first = records[-1].offset + 1
    return found


def _differences(archived: Sequence[Archived], there: dict[int, bytes]) -> list[str]:
    return [
        f"epoch {record.epoch}: offset {record.offset} of the topic "
        + ("has another record" if record.offset in there else "has no record")
        for record in archived
        if there.get(record.offset) != record.value
    ]


def _show(found: Verified) -> None:
    out = console()
    if found.verdict is None:
        out.print(f"{found.url}: {found.why}", soft_wrap=True)
        return
    verdict = found.verdict
    out.print(
        f"{found.url}: epochs {verdict.first_epoch} to {verdict.last_epoch}, {verdict.folded_epochs} folded,"
        f" {counted(len(verdict.snapshots), 'snapshot', 'snapshots')} compared, {found.compared} epochs as the"
        " topic has them",
        soft_wrap=True,
    )
    if verdict.state_hash:
        out.print(f"  state {verdict.state_id}, hash {verdict.state_hash}", soft_wrap=True)
    flaws = (*verdict.flaws, *found.differs)
    for flaw in flaws[:20]:
        out.print(f"  {flaw}", soft_wrap=True)
    out.print(f"  wrong: {len(flaws)}" if flaws else "  nothing is wrong")
