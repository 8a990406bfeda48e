"""``stele log replay``: the epochs topic folded from its beginning, in this process alone."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cyclopts import Parameter

from stele.cli.errors import CliError, UnreachableError, UsageError
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.places import told_or_of_stack
from stele.domain.snapshot import state_hash
from stele.log.errors import LogError
from stele.log.flows import flow_topic
from stele.log.fold import Fold
from stele.log.kafka import KafkaLog
from stele.log.port import Log

READ_BATCH = 2000
ASK_S = 5.0


def replay(
    *,
    bootstrap: Annotated[str, Parameter(name="--bootstrap")] = "",
    cluster: Annotated[str, Parameter(name="--cluster")] = "",
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Fold every record from offset 0 and print the epoch, state id and hash that follow.

    It asks no service: two runs that differ, or a service that differs from it, are a bug.

    Args:
        bootstrap: Kafka brokers. Else those of --dir, else STELE_KAFKA_BOOTSTRAP, else those of the stack
            in STELE_DIR or .stele.
        cluster: The cluster's name, from there too, or by STELE_CLUSTER.
        epoch: Stop at this epoch.
    """
    brokers = bootstrap or told_or_of_stack("STELE_KAFKA_BOOTSTRAP", where.typed)
    name = cluster or told_or_of_stack("STELE_CLUSTER", where.typed)
    if not brokers or not name:
        raise UsageError(
            "Which log? There is no stack in --dir.",
            "Give --bootstrap HOST:PORT and --cluster NAME.",
        )
    fold, took_s = asyncio.run(_replay(brokers, name, epoch, where.timeout_s))
    image = fold.image
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
    bootstrap: str, cluster: str, last: int | None, timeout_s: float
) -> tuple[Fold, float]:
    log = KafkaLog(bootstrap, flow_topic(cluster, "epochs"))
    try:
        async with asyncio.timeout(timeout_s):
            end = await log.end_offset()
        began = time.perf_counter()
        fold = await fold_log(log, end, last)
        return fold, time.perf_counter() - began
    except LogError as error:
        raise CliError(f"The log cannot be read on: {error}") from error
    except TimeoutError as error:
        raise await asyncio.to_thread(_why_silent, bootstrap, cluster) from error
    finally:
        await log.close()


def _why_silent(bootstrap: str, cluster: str) -> CliError:
    """No broker, or no such cluster: one question tells which."""
    topic = flow_topic(cluster, "epochs")
    try:
        topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=ASK_S).topics
    except KafkaException:
        topics = None
    if topics is not None and topic not in topics:
        return CliError(
            f"Kafka at {bootstrap} has no topic {topic}.", f"Is '{cluster}' the cluster's name?"
        )
    return UnreachableError(
        f"Kafka at {bootstrap} does not answer.", "Is it running? `stele stack status`."
    )


async def fold_log(log: Log, end_offset: int, last: int | None = None) -> Fold:
    """Fold records up to ``end_offset``, or up to epoch ``last``. Raises LogError."""
    fold = Fold()
    while fold.next_offset < end_offset:
        left = end_offset - fold.next_offset
        records = await log.read(fold.next_offset, min(READ_BATCH, left))
        if not records:
            return fold
        for offset, value in records:
            if fold.image.epoch == last:
                return fold
            fold.chain.jump(offset)  # what is read here is all that is there
            fold.offer(offset, value)
    return fold
