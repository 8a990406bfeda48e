"""Invalid commands through Kafka: each is answered, and later commands are decided."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from stele.domain.commands import Envelope, SetSetting
from stele.domain.model.requests import named
from stele.log.codec import encode_envelope
from stele.log.flows import flow_topic
from stele.metadata_log.__main__ import health_of, running
from stele.metadata_log.commands_topic import MAX_KEY_CHARS
from stele.metadata_log.settings import MetadataLogSettings
from stele.runtime.settings import ConfigurationError
from tests.services.plain_kafka import DEADLINE_S, Kafka

pytestmark = pytest.mark.broker

LONG_ID = "x" * 600_000
"""A command with this id fits into the topic. An outcome, with the id as key and in its value, does not."""
NESTED = b'{"command":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.fixture
def settings(kafka: str, topics: str) -> MetadataLogSettings:
    return MetadataLogSettings(kafka_bootstrap=kafka, cluster=topics, found="auto")


@pytest.fixture
def plain(kafka: str, topics: str) -> Iterator[Kafka]:
    client = Kafka(kafka, topics)
    yield client
    client.close()


def setting(request_id: str) -> bytes:
    return encode_envelope(Envelope(request_id=request_id, command=SetSetting("a", "b")))


def committed(settings: MetadataLogSettings) -> int:
    """Return the offset from which the next instance would read commands."""
    group = f"stele.{settings.cluster}.metadata-log"
    consumer = Consumer({"bootstrap.servers": settings.kafka_bootstrap, "group.id": group})
    try:
        topic = TopicPartition(flow_topic(settings.cluster, "commands"), 0)
        (found,) = consumer.committed([topic], DEADLINE_S)
        return found.offset
    finally:
        consumer.close()


async def test_command_with_a_too_long_id_is_answered_and_blocks_nothing(
    settings: MetadataLogSettings, plain: Kafka
) -> None:
    """The answer arrives at once, before the outcomes of commands that must win first."""
    async with running(settings) as (writer, commands):
        plain.send(setting(LONG_ID), None)
        plain.send(setting(named("next")), "next")
        (applied,) = await asyncio.to_thread(plain.wait_for, named("next"))
        assert applied.applied
        assert list(plain.outcomes) == [LONG_ID[:MAX_KEY_CHARS], named("next")]
        (told,) = plain.outcomes[LONG_ID[:MAX_KEY_CHARS]]
        assert (told.taken, told.applied) == (False, False)
        assert told.rejection is not None
        assert told.rejection.code == "bad_request_id"
        assert "`stele id`" in told.rejection.hint
        assert health_of(writer, commands).ok
    assert committed(settings) == 2


async def test_nested_json_in_the_commands_topic_is_refused(
    settings: MetadataLogSettings, plain: Kafka
) -> None:
    """The record may begin with the bytes of a valid command."""
    good = setting(named("good"))
    async with running(settings) as (writer, commands):
        plain.send(NESTED, "nested")
        plain.send(good[:10] + NESTED, "inside")
        plain.send(good, "good")
        *refused, applied = await asyncio.to_thread(
            plain.wait_for, "nested", "inside", named("good")
        )
        for outcome in refused:
            assert not outcome.taken
            assert outcome.rejection is not None
        codes = [outcome.rejection.code for outcome in refused if outcome.rejection]
        assert codes == ["unknown_schema", "malformed_command"]
        assert applied.applied
        assert health_of(writer, commands).ok
    assert committed(settings) == 3


async def test_commands_in_registry_framing_need_a_configured_schema_id(
    settings: MetadataLogSettings, plain: Kafka
) -> None:
    plainly = setting(named("framed"))
    told = f"7={plainly[2:10].hex()}"
    async with running(msgspec.structs.replace(settings, command_schema_ids=told)) as (_, commands):
        assert commands.failure == ""
        plain.send(b"\0\0\0\0\x08" + setting(named("unknown"))[10:], named("unknown"))
        plain.send(b"\0\0\0\0\x07" + plainly[10:], None)
        unknown, framed = await asyncio.to_thread(plain.wait_for, named("unknown"), named("framed"))
        assert framed.applied
        assert unknown.rejection is not None and not unknown.taken
        assert unknown.rejection.code == "unknown_schema"
        assert "STELE_COMMAND_SCHEMA_IDS" in unknown.rejection.message


async def test_start_fails_on_a_schema_id_that_is_not_of_commands(
    settings: MetadataLogSettings,
) -> None:
    wrong = msgspec.structs.replace(settings, command_schema_ids="7=0123456789abcdef")
    with pytest.raises(ConfigurationError, match="STELE_COMMAND_SCHEMA_IDS"):
        async with running(wrong):
            raise AssertionError("it must not start")
