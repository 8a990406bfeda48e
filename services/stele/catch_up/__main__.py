"""``python -m stele.catch_up``: configured by STELE_* environment variables."""

import asyncio
from typing import Final

from stele.catch_up.checking import FILE, Checks
from stele.catch_up.diverging import set_aside
from stele.catch_up.filling import ArchivePeers
from stele.catch_up.identity import ReplicaIdentity, identity_of
from stele.catch_up.mirror import store_of
from stele.catch_up.recovering import NotRecoverable
from stele.catch_up.replica import NAME, CatchUpReplica, Ports
from stele.catch_up.settings import CatchUpSettings
from stele.catch_up.trimming import delete_records
from stele.log.archive.archive import Archive
from stele.log.commander import Commander
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.runtime.callers import Callers, callers_of
from stele.runtime.catch_up import CatchUp
from stele.runtime.http import Listener, listening
from stele.runtime.kafka import Topic, TopicsUnavailable, is_missing, make_topic, wait_for_topics
from stele.runtime.logs import get_logger
from stele.runtime.position import position_route
from stele.runtime.service import Stop, locked, run_service, started
from stele.runtime.starting import end_in_order

MAKE_S: Final = 20.0
"""Time within which a missing topic must be created before a log is recovered into it, in
seconds.
"""

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = started(NAME, CatchUpSettings)
    callers = callers_of(settings)
    with locked(settings.data_dir):
        set_aside(settings.data_dir)
        identity = identity_of(settings.data_dir, settings.instance_id, settings.cluster)
        async with listening(settings, NAME) as listener:
            await _run(settings, identity, callers, listener, stop)


async def _run(
    settings: CatchUpSettings,
    identity: ReplicaIdentity,
    callers: Callers | None,
    listener: Listener,
    stop: Stop,
) -> None:
    archive = await asyncio.to_thread(Archive, settings.data_dir)
    for text in archive.damaged:
        log.error("a file of the archive is damaged and was set aside", file=text)
    own_url = settings.address or listener.url
    others = CatchUp([url for url in settings.catch_up_urls if url != own_url])
    peers = ArchivePeers(others, store_of(settings), settings.cluster)
    ports = _on_kafka(settings)
    replica = CatchUpReplica(settings, identity, own_url, archive, peers, ports, callers)
    try:
        await wait_for_topics(settings)
        async with replica.running(stop) as (followed, api):
            api.checks = Checks(archive, settings.data_dir / FILE)
            api.checks.repeat(settings.check_every_days)
            position = position_route(NAME, identity.replica_id, followed.follower)
            try:
                await listener.serve(api.app(NAME, followed.health, position), stop)
            finally:
                await api.checks.close()
    finally:
        await others.close()
        await replica.keeper.close()


def _on_kafka(settings: CatchUpSettings) -> Ports:
    brokers, topic = settings.brokers, flow_topic(settings.cluster, "epochs")

    async def make_it() -> bool:
        copies = settings.kafka_replication_factor
        try:
            return await asyncio.to_thread(
                make_topic, brokers, settings.cluster, Topic.EPOCHS, copies, deadline_s=MAKE_S
            )
        except TopicsUnavailable as error:
            raise NotRecoverable(str(error)) from error

    async def is_it_missing() -> bool:
        try:
            return await asyncio.to_thread(
                is_missing, brokers, settings.cluster, Topic.EPOCHS, deadline_s=MAKE_S
            )
        except TopicsUnavailable as error:
            raise NotRecoverable(str(error)) from error

    return Ports(
        open_log=lambda: KafkaLog(brokers, topic),
        is_topic_missing=is_it_missing,
        make_topic=make_it,
        delete=lambda offset: delete_records(brokers, topic, offset),
        commander=lambda: Commander(brokers, settings.cluster),
        end=end_in_order,
    )


if __name__ == "__main__":
    raise SystemExit(run_service(main))
