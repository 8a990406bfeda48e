"""``stele log replay`` and ``stele log verify``: they read the topic and the archives themselves.

Epochs that the topic no longer holds come from the archives of catch-up.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cyclopts import Parameter
from cyclopts.validators import Number

from stele.cli.commands.backup import known_urls, run_work
from stele.cli.errors import CliError, Exit, UnreachableError, UsageError
from stele.cli.notice import ProgressLine
from stele.cli.options import FROM_ONE, Json, TypedDirectory, Where
from stele.cli.output import console, counted, duration, print_line, print_value_as_json
from stele.cli.places import read_stack_file, stack_directory, told_by_shell, told_or_of_stack
from stele.domain.snapshot import state_hash
from stele.log.archive.container import Archived, NotArchivedError
from stele.log.archive_store.source import Replayed, first_epoch, fold_archive_and_topic, fold_topic
from stele.log.archive_store.verify import ArchiveVerdict, CheckProgress, verify
from stele.log.brokers import Brokers
from stele.log.chain import LOG_ID
from stele.log.deliveries import Refusals
from stele.log.errors import CorruptRecordError, LogError, NoBeginningError, RecoveredError
from stele.log.flows import flow_topic
from stele.log.fold import Fold
from stele.log.kafka import KafkaLog
from stele.log.port import LogPast, Record
from stele.runtime.answers.catch_up import CheckAnswer, CheckState
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable, replica_source
from stele.runtime.settings import ConfigurationError, KafkaSettings, load_settings

ASK_S: Final = 1.0
ASKED: Final = 5
BROKERS_VARIABLE: Final = "STELE_KAFKA_BOOTSTRAP"


def replay(
    *,
    bootstrap: Annotated[str, Parameter(name="--bootstrap")] = "",
    cluster: Annotated[str, Parameter(name="--cluster")] = "",
    catch_up: Annotated[tuple[str, ...], Parameter(name="--catch-up", negative="")] = (),
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Fold the whole log in this process, and print the resulting epoch, state id and hash.

    It asks no service while the topic has its beginning. Truncated and recovered epochs come from the archives
    of catch-up. Two runs that differ, or a service that differs from a run, are a bug.

    Args:
        bootstrap: Kafka brokers. Default: those of --dir, else STELE_KAFKA_BOOTSTRAP, else those of the stack
            in STELE_DIR or .stele. Other STELE_KAFKA_* variables apply, except to a stack.
        cluster: Name of the cluster. Default: that of the stack, else STELE_CLUSTER.
        catch_up: Address of a catch-up replica; may be repeated. Default: that of the stack, else
            STELE_CATCH_UP_URLS.
        epoch: Stop at this epoch.
    """
    kafka = kafka_at(bootstrap) if bootstrap else told_kafka(where.typed)
    name = cluster or told_or_of_stack("STELE_CLUSTER", where.typed)
    if kafka is None or not name:
        raise UsageError(
            "Which log? There is no stack in --dir.",
            "Give --bootstrap HOST:PORT and --cluster NAME.",
        )
    replayed, took_s = run_work(
        _replay(kafka.brokers, name, epoch, catch_up, where), "replaying the log"
    )
    fold, image = replayed.fold, replayed.fold.image
    if epoch is not None and image.epoch < epoch:
        raise CliError(
            f"There is no epoch {epoch} yet: the log ends at epoch {image.epoch}.",
            "Leave --epoch out for the newest.",
        )
    result = {
        "cluster": image.cluster,
        "epoch": image.epoch,
        "state_id": image.state_id.hex(),
        "hash": state_hash(image),
        "records": fold.next_offset,
        "from_archives": replayed.archived,
        "losers": fold.losers,
        "took_s": round(took_s, 3),
        "epochs_per_s": round(image.epoch / took_s) if took_s else 0,
    }
    if json.as_json:
        print_value_as_json(result)
        return
    for key, value in result.items():
        print_line(f"{key:<13} {value}")


async def _replay(
    brokers: Brokers, cluster: str, last: int | None, catch_up: Sequence[str], where: Where
) -> tuple[Replayed, float]:
    log = KafkaLog(brokers, flow_topic(cluster, "epochs"))
    try:
        async with asyncio.timeout(where.timeout_s):
            begin, end = await log.ends()
        began_s = time.perf_counter()
        replayed = await _by_topic_alone(log, begin, end, last)
        if replayed is None:
            urls = catch_up or known_urls(where.typed)
            replayed = await _with_archives(log, begin, end, last, urls)
        return replayed, time.perf_counter() - began_s
    except LogError as error:
        raise CliError(f"The log cannot be read on: {error}") from error
    except TimeoutError as error:
        raise await asyncio.to_thread(_why_silent, brokers, cluster) from error
    finally:
        await log.close()


async def _by_topic_alone(log: LogPast, begin: int, end: int, last: int | None) -> Replayed | None:
    """Fold the topic.

    Return None if it lacks epochs: it was truncated, or lost some and was recovered.
    """
    if begin == end > 0:
        return None
    try:
        fold = Fold(across_recoveries=True)
        return Replayed(await fold_topic(fold, log, begin, end, last), 0)
    except (NoBeginningError, RecoveredError):
        return None


async def _with_archives(
    log: LogPast, begin: int, end: int, last: int | None, urls: Sequence[str]
) -> Replayed:
    catch_up = CatchUp(urls)
    try:
        return await fold_archive_and_topic(await replica_source(catch_up), log, begin, end, last)
    except CorruptRecordError as error:
        raise CliError(str(error), "`stele log verify` names the replica that is wrong.") from error
    except NotArchivedError as error:
        raise CliError(
            f"Epoch {error.epoch} is neither in the topic nor in the archives: no replay can begin.",
            "`stele catch-up show` shows the kept epochs; a backup may have more: `stele backup verify`.",
        ) from error
    finally:
        await catch_up.close()


def _why_silent(brokers: Brokers, cluster: str) -> CliError:
    """Return the error: no broker answers, or the cluster does not exist.

    One query distinguishes them.
    """
    topic, refusals = flow_topic(cluster, "epochs"), Refusals()
    admin = AdminClient(brokers.client() | {"error_cb": refusals})
    topics = None
    for _ in range(ASKED):
        try:
            topics = admin.list_topics(timeout=ASK_S).topics
            break
        except KafkaException as error:
            refusals.why(error, admin)
        if refusals.newest:
            return UnreachableError(f"Kafka at {brokers.servers} refuses this.", refusals.newest)
    if topics is not None and topic not in topics:
        return CliError(
            f"Kafka at {brokers.servers} has no topic {topic}.",
            f"Is '{cluster}' the cluster's name?",
        )
    return UnreachableError(
        f"Kafka at {brokers.servers} does not answer.", "Is it running? `stele stack status`."
    )


READ_RECORDS = 2000
POLL_S = 0.3
LARGEST = (1 << 62) - 1
PERCENTS: Final = Number(gte=1, lte=100)


class Verified(msgspec.Struct, frozen=True):
    """The result for one replica: its archive, and differences from the topic.

    ``why`` is the reason if the replica gave no result.
    """

    url: str
    verdict: ArchiveVerdict | None
    compared: int
    """Epochs that the topic still has. They are equal there unless ``differs`` is set."""
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
    json: Json = Json(),
) -> int:
    """Check the archives of all catch-up replicas, and with --topic compare them with the topic.

    Every epoch must follow from the one before it, by state ids and facts. The epochs must lead to the state of
    each snapshot. The topic must hold the same epochs as the archives. Exit status 1 when something is wrong.
    Ctrl-C ends the display, and not the check of the replicas.

    Args:
        catch_up: Address of a catch-up replica; may be repeated. Default: that of --dir, else
            STELE_CATCH_UP_URLS, else that of the stack in STELE_DIR or .stele.
        topic: Also compare with the topic, by STELE_KAFKA_BOOTSTRAP or the stack.
        copy: Read each archive over HTTP and check it in this process, instead of asking the replica.
        percent: Share of a processor that each replica spends on it.
        directory: Directory of a local stack.
    """
    began_s, found = time.perf_counter(), list[Verified]()
    kafka = told_kafka(directory) if topic else None
    brokers = None if kafka is None else kafka.brokers
    urls = catch_up or known_urls(directory)
    progress = ProgressLine()
    if not copy:
        run_work(_begun(urls, percent))
    check = _checked_here if copy else partial(_checked_there, percent=percent)
    for url in urls:
        found.append(run_work(_verified(url, brokers, check, progress)))
        if not json.as_json:
            _show(found[-1])
    if json.as_json:
        print_value_as_json(found)
    else:
        console().print(f"in {duration(time.perf_counter() - began_s)}")
    return Exit.OK if all(each.is_well for each in found) else Exit.FAILED


async def _begun(urls: Sequence[str], percent: int) -> None:
    """Start the check on all replicas. A replica that fails now is tried again later."""
    catch_up = CatchUp(urls)
    try:
        asked = (catch_up.check(url.rstrip("/"), percent) for url in urls)
        await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await catch_up.close()


Check = Callable[[CatchUp, str, ProgressLine], Awaitable[ArchiveVerdict]]
"""Checks the archive of one replica, and shows its progress. Raises CatchUpUnavailable."""


async def _verified(
    url: str, brokers: Brokers | None, check: Check, progress: ProgressLine
) -> Verified:
    """Return the result for one replica: its check, and the comparison with the topic."""
    catch_up = CatchUp([url])
    try:
        verdict = await check(catch_up, url.rstrip("/"), progress)
        if brokers is None:
            return Verified(url, verdict, 0, ())
        about = (await replica_source(catch_up)).about
        log = KafkaLog(brokers, flow_topic(about.cluster, "epochs"))
        try:
            begin, end = await log.ends()
            compared, differs = await against_topic(
                _records_of(catch_up, log, begin, end), log, begin, bytes.fromhex(about.log_id)
            )
        finally:
            await log.close()
        return Verified(url, verdict, compared, differs)
    except (CatchUpUnavailable, TimeoutError) as error:
        return Verified(url, None, 0, (), str(error))
    finally:
        progress.end()
        await catch_up.close()


async def _checked_there(
    catch_up: CatchUp, url: str, progress: ProgressLine, *, percent: int
) -> ArchiveVerdict:
    """Wait until the replica has checked itself, and return its verdict."""
    answer = await catch_up.checked(url)
    if answer.state is CheckState.NONE:
        answer = await catch_up.check(url, percent)
    while answer.state is CheckState.RUNNING:
        _show_progress(progress, url, answer)
        await asyncio.sleep(POLL_S)
        answer = await catch_up.checked(url)
    if answer.verdict is None:
        raise CatchUpUnavailable(answer.why)
    return answer.verdict


async def _checked_here(catch_up: CatchUp, url: str, progress: ProgressLine) -> ArchiveVerdict:
    """Read the whole archive over HTTP, and check it in this process."""
    source = await replica_source(catch_up)
    return await verify(source, partial(_show_progress, progress, url))


def _show_progress(progress: ProgressLine, url: str, checked: CheckAnswer | CheckProgress) -> None:
    snapshots = counted(checked.snapshots, "snapshot", "snapshots")
    share = checked.epoch / checked.last if checked.last else 0.0
    progress.tell(f"{url}: epoch {checked.epoch} of {checked.last}, {snapshots} compared", share)


async def _records_of(
    catch_up: CatchUp, log: LogPast, begin: int, end: int
) -> AsyncIterator[list[Archived]]:
    """Yield a replica's records of the epochs that the topic still holds, in batches."""
    following = await first_epoch(log, begin) if end > begin else 0
    while following:
        try:
            found = await catch_up.records(following, LARGEST)
        except NotArchivedError:
            return
        yield found
        following = found[-1].epoch + 1


async def against_topic(
    pieces: AsyncIterator[list[Archived]], log: LogPast, begin: int, log_id: bytes
) -> tuple[int, tuple[str, ...]]:
    """Compare an archive's records with the topic, which begins at offset ``begin``.

    Return the number of compared epochs of log ``log_id``, and the differences. Raises
    TimeoutError, CatchUpUnavailable.
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
        print_line(f"{found.url}: {found.why}", out)
        return
    verdict = found.verdict
    print_line(
        f"{found.url}: epochs {verdict.first_epoch} to {verdict.last_epoch}, {verdict.folded_epochs} folded,"
        f" {counted(len(verdict.snapshots), 'snapshot', 'snapshots')} compared, {found.compared} epochs as the"
        " topic has them",
        out,
    )
    if verdict.state_hash:
        print_line(f"  state {verdict.state_id}, hash {verdict.state_hash}", out)
    flaws = (*verdict.flaws, *found.differs)
    for flaw in flaws[:20]:
        print_line(f"  {flaw}", out)
    out.print(f"  wrong: {len(flaws)}" if flaws else "  nothing is wrong")


def kafka_at(servers: str, environment: Mapping[str, str] = os.environ) -> KafkaSettings:
    """Return the settings for brokers at these addresses, with other STELE_KAFKA_* variables.

    Raises UsageError.
    """
    try:
        return load_settings(KafkaSettings, {**environment, BROKERS_VARIABLE: servers})
    except ConfigurationError as error:
        raise UsageError(str(error), "Correct the variable in this shell.") from error


def told_kafka(typed: Path | None) -> KafkaSettings | None:
    """Return the brokers of the given stack, else of the shell, else of the default stack.

    The default stack uses no TLS and no SASL. None: no brokers are configured. Raises UsageError.
    """
    stack, shell = read_stack_file(stack_directory(typed)), told_by_shell(typed)
    of_stack = "" if stack is None else stack.environment.get(BROKERS_VARIABLE, "")
    servers = shell.get(BROKERS_VARIABLE, "") or of_stack
    if servers != of_stack:
        return kafka_at(servers, shell)
    return KafkaSettings(kafka_bootstrap=servers) if servers else None
