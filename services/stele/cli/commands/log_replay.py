"""``stele log replay``: the log folded from its first epoch, in this process alone: what the topic does not
hold any more comes from the archives of catch-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cyclopts import Parameter

from stele.cli.commands.backup import known_urls, run_work
from stele.cli.errors import CliError, UnreachableError, UsageError
from stele.cli.kafka import kafka_at, told_kafka
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.places import told_or_of_stack
from stele.domain.snapshot import state_hash
from stele.log.archive.spans import NotArchivedError
from stele.log.archive_store.replay import (
    Replayed,
    fold_archive_and_topic,
    fold_topic,
)
from stele.log.brokers import Brokers
from stele.log.errors import CorruptRecordError, LogError, NoBeginningError, RecoveredError
from stele.log.flows import flow_topic
from stele.log.fold import Fold
from stele.log.kafka import KafkaLog
from stele.log.port import LogPast
from stele.log.refusals import Refusals
from stele.runtime.catch_up import CatchUp
from stele.runtime.replica_source import replica_source

ASK_S: Final = 1.0
ASKED: Final = 5


def replay(
    *,
    bootstrap: Annotated[str, Parameter(name="--bootstrap")] = "",
    cluster: Annotated[str, Parameter(name="--cluster")] = "",
    catch_up: Annotated[tuple[str, ...], Parameter(name="--catch-up", negative="")] = (),
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Fold every record from the first epoch on and print the epoch, state id and hash that follow.

    It asks no service while the topic has its beginning; what was truncated, or lost and recovered, is read
    from the archives of catch-up. Two runs that differ, or a service that differs from it, are a bug.

    Args:
        bootstrap: Kafka brokers. Else those of --dir, else STELE_KAFKA_BOOTSTRAP, else those of the stack
            in STELE_DIR or .stele. Other STELE_KAFKA_* variables say how, except to a stack.
        cluster: The cluster's name, from there too, or by STELE_CLUSTER.
        catch_up: Address of a catch-up replica; may be repeated. Else as with the brokers, by
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
    replayed, took_s = run_work(_replay(kafka.brokers, name, epoch, catch_up, where))
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
        console().print(f"{key:<13} {value}", soft_wrap=True)


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
    """None when the topic does not have all epochs: it was truncated, or lost some and was recovered."""
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
        raise CliError(str(error), "`stele log verify` tells which replica is wrong.") from error
    except NotArchivedError as error:
        raise CliError(
            f"Epoch {error.epoch} is neither in the topic nor in the archives: no replay can begin.",
            "`stele catch-up show` tells what is kept; a backup may have more: `stele backup verify`.",
        ) from error
    finally:
        await catch_up.close()


def _why_silent(brokers: Brokers, cluster: str) -> CliError:
    """No broker, or no such cluster: one question tells which."""
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
