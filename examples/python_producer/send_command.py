"""Sends a command to a Stele cluster through Kafka and reads its outcome; of Stele it needs the schemas alone.

    pip install confluent-kafka fastavro
    python send_command.py BOOTSTRAP CLUSTER SCHEMAS NAME VALUE [REQUEST_ID]

It sets a setting. With the id of an earlier run it asks again, and hears that run's outcome.
"""

import io
import secrets
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from fastavro import schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, load_schema, to_parsing_canonical_form

SEND_AGAIN_AFTER_S = 2.0
GIVE_UP_AFTER_S = 30.0
APPLIED, REFUSED, USAGE, UNKNOWN = 0, 1, 2, 3
HEADER_BYTES = 10


def header_of(schema: Any) -> bytes:
    """What stands before each record of this schema: Avro's single-object encoding."""
    canonical = to_parsing_canonical_form(schema)
    return b"\xc3\x01" + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def encoded(schema: Any, record: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    schemaless_writer(body, schema, record)
    return header_of(schema) + body.getvalue()


class Outcomes:
    """Those that come from now on. Older services write older schemas, which stand in the history."""

    def __init__(self, broker: dict[str, Any], cluster: str, schemas: Path) -> None:
        files = (schemas / "outcome.avsc", *schemas.glob("history/outcome-*.avsc"))
        self._schemas = {header_of(schema): schema for schema in map(load_schema, files)}
        group = {"group.id": f"stele.{cluster}.producer", "enable.auto.commit": False}
        self._consumer = Consumer({**broker, **group})
        partition = TopicPartition(f"stele.{cluster}.outcomes", 0)
        _, partition.offset = self._consumer.get_watermark_offsets(partition)
        self._consumer.assign([partition])

    def awaited(self, request_id: str) -> Any:
        """The one with this id, if it comes soon."""
        end_s = time.monotonic() + SEND_AGAIN_AFTER_S
        while time.monotonic() < end_s:
            message = self._consumer.poll(0.1)
            if message is None or message.error() or message.key() != request_id.encode():
                continue
            value = message.value() or b""
            schema = self._schemas[value[:HEADER_BYTES]]  # KeyError: the service is newer
            return schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema, None)
        return None

    def close(self) -> None:
        self._consumer.close()


def send(bootstrap: str, cluster: str, schemas: Path, command: Any, request_id: str) -> Any:
    """The command's outcome; None: it is unknown, and the same command with the same id is to be sent again."""
    broker = {"bootstrap.servers": bootstrap}
    outcomes = Outcomes(broker, cluster, schemas)  # to their end first: the answer comes behind it
    producer = Producer(broker)
    envelope = {
        "request_id": request_id,
        "actor": "python",
        "reason": "an example",
        "command": command,
    }
    record = encoded(load_schema(schemas / "command.avsc"), envelope)
    outcome, end_s = None, time.monotonic() + GIVE_UP_AFTER_S
    while outcome is None and time.monotonic() < end_s:
        # The same bytes again until it is answered: one id has one outcome.
        producer.produce(f"stele.{cluster}.commands", record, request_id)
        producer.flush(SEND_AGAIN_AFTER_S)
        outcome = outcomes.awaited(request_id)
    outcomes.close()
    return outcome


def uuid7() -> str:
    """Request ids are UUIDs of version 7: milliseconds since 1970, then chance."""
    chance = secrets.randbits(74)
    high = time.time_ns() // 1_000_000 << 16 | 0x7000 | chance >> 62
    return str(uuid.UUID(int=high << 64 | 1 << 63 | chance & (1 << 62) - 1))


def main(arguments: list[str]) -> int:
    if len(arguments) not in (5, 6):
        print(__doc__, file=sys.stderr)
        return USAGE
    bootstrap, cluster, schemas, name, value, *given = arguments
    request_id = given[0] if given else uuid7()
    command = ("stele.set_setting", {"name": name, "value": value})
    outcome = send(bootstrap, cluster, Path(schemas), command, request_id)
    if outcome is None:
        print(f"unknown: ask again with {request_id}")
        return UNKNOWN
    why = f": {outcome['rejection']['code']}" if outcome["rejection"] else ""
    said = "applied" if outcome["applied"] else "refused"
    print(f"{request_id} {said} epoch {outcome['epoch']}{why}")
    return APPLIED if outcome["applied"] else REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
