"""A router that reads the log itself, on a real broker."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stele.log.brokers import Brokers
from stele.router import UnknownName
from stele.router.over_kafka import kafka_router
from tests.domain.history import join
from tests.services.world import log_writer

pytestmark = pytest.mark.broker


async def test_router_reads_existing_and_new_epochs(kafka: str, topics: str) -> None:
    async with log_writer(kafka, topics) as writer, kafka_router(Brokers(kafka), topics) as router:
        await router.wait_for_epoch(writer.image.epoch, 20)
        outcome = await writer.submit(msgspec.structs.replace(join(1), cluster=topics))
        assert outcome.applied, outcome
        await router.wait_for_epoch(outcome.epoch, 20)
        assert router.image.membership == writer.image.membership
        with pytest.raises(UnknownName, match="no keyspace"):
            router.lookup("library", b"k")
        assert router.image.state_id == writer.image.state_id
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "router"]
