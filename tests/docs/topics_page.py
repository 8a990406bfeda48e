"""The generated parts of docs/reference/topics.md: ``python -m tests.docs.topics_page`` writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro
import msgspec

from stele.domain.commands import COMMANDS, CreateKeyspace, Envelope, Outcome, Rejection
from stele.domain.messages import Ack, Load, Order, Report, StreamedFrom, TabletSizes
from stele.domain.names import OrderKind, ReportStatus
from stele.log.codec import (
    decode_ack,
    decode_envelope,
    decode_load,
    decode_order,
    decode_outcome,
    decode_report,
    encode_ack,
    encode_envelope,
    encode_load,
    encode_order,
    encode_outcome,
    encode_report,
)
from stele.log.schemas import HEADER_BYTES, header_of, schema_folder
from stele.runtime.kafka import topic_specs
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "topics.md"
REPLICATION_FACTOR = 3
SHOWN_BYTES = 20
LOG_ID = bytes.fromhex("018bcfe568007fffb0aa5cb6d5bd7a11")
STATE_ID = bytes.fromhex("018bcfe568007f648a097c98a5e2abb5")
REQUEST = "018bcfe5-6800-7aaa-8000-000000000007"
HOST = "6f1f0e4a-8f6b-4f0e-9a51-3f6a1f8f0f11"
BOOT = "000000000003-5b0f2d3a"
SESSION = "018bcfe5-6800-8bbb-8000-0000000000a1"
AT_MS = 1_700_000_000_000


class Sample(NamedTuple):
    """A sample message of a topic, with its writers, its encoder and its decoder."""

    topic: str
    schema: str
    written_by: str
    key: str
    message: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


SAMPLES = (
    Sample(
        "commands",
        "command",
        "services, nodes, programs of yours",
        "request id",
        Envelope(
            request_id=REQUEST,
            command=CreateKeyspace("library", {"dc1": 3}),
            actor="ada",
            reason="books",
        ),
        encode_envelope,
        decode_envelope,
    ),
    Sample(
        "outcomes",
        "outcome",
        "metadata-log",
        "request id",
        Outcome(
            request_id=REQUEST,
            applied=False,
            epoch=33,
            state_id=STATE_ID,
            rejection=Rejection("keyspace_exists", "There is one.", "Choose another.", {}),
            log_id=LOG_ID,
        ),
        encode_outcome,
        decode_outcome,
    ),
    Sample(
        "orders",
        "order",
        "coordinator",
        "node id",
        Order(
            node_id="n4",
            term=2,
            index=17,
            kind=OrderKind.STREAM,
            epoch=41,
            session=SESSION,
            request_id=REQUEST,
            log_id=LOG_ID,
        ),
        encode_order,
        decode_order,
    ),
    Sample(
        "acks",
        "ack",
        "nodes",
        "node id",
        Ack(
            node_id="n4",
            boot_id=BOOT,
            sequence=12,
            epoch=41,
            version=9,
            fence_version=8,
            oldest_version_in_use=9,
            sessions_in_use=(SESSION,),
            at_ms=AT_MS,
            log_id=LOG_ID,
            state_id=STATE_ID,
            host_id=HOST,
        ),
        encode_ack,
        decode_ack,
    ),
    Sample(
        "reports",
        "report",
        "nodes",
        "node id",
        Report(
            node_id="n4",
            term=2,
            index=17,
            kind=OrderKind.STREAM,
            session=SESSION,
            request_id=REQUEST,
            status=ReportStatus.RUNNING,
            bytes_done=65_536,
            bytes_total=1_048_576,
            keys_done=64,
            at_ms=AT_MS,
            log_id=LOG_ID,
            sources=(StreamedFrom(node_id="n1", bytes_done=65_536, keys_done=64),),
        ),
        encode_report,
        decode_report,
    ),
    Sample(
        "load",
        "load",
        "nodes",
        "node id",
        Load(
            node_id="n4",
            host_id=HOST,
            boot_id=BOOT,
            sequence=3,
            epoch=41,
            at_ms=AT_MS,
            disk_total_bytes=1 << 40,
            disk_free_bytes=1 << 39,
            tables=(
                TabletSizes(data_id="t7", tablet_count=4, tablets=(0, 3), sizes_bytes=(900, 70)),
            ),
            log_id=LOG_ID,
        ),
        encode_load,
        decode_load,
    ),
)


class Piece(NamedTuple):
    """A field, and the bytes that it takes in the body."""

    name: str
    kind: str
    content: bytes
    value: object
    doc: str


def pieces(sample: Sample) -> list[Piece]:
    """Split the body into its fields. Their bytes together are the body."""
    schema = fastavro.schema.load_schema(schema_folder() / f"{sample.schema}.avsc")
    body = sample.encode(sample.message)[HEADER_BYTES:]
    record = fastavro.schemaless_reader(io.BytesIO(body), schema, None)
    named: dict[str, Any] = {}
    fastavro.parse_schema(schema, named_schemas=named)
    found, at = list[Piece](), 0
    for field in schema["fields"]:
        written = io.BytesIO(body[at:])
        kind = fastavro.parse_schema(field["type"], named_schemas=dict(named))
        fastavro.schemaless_reader(written, kind, None)
        size = written.tell()
        value = record[field["name"]]
        doc = str(field.get("doc", ""))
        found.append(Piece(field["name"], _kind(field["type"]), body[at : at + size], value, doc))
        at += size
    assert at == len(body), "the fields cover the body"
    return found


def _kind(written: Any) -> str:
    if isinstance(written, dict):
        return str(written["type"])
    return "union" if isinstance(written, list) else str(written)


def sections() -> Iterator[str]:
    yield from _topics()
    for sample in SAMPLES:
        encoded = sample.encode(sample.message)
        yield f"### {sample.topic}\n\n"
        yield f"`{sample.schema}.avsc`, written by {sample.written_by}. A sample:\n\n"
        yield f"```text\n{_json(sample.message)}\n```\n\n"
        yield (
            f"{len(encoded)} bytes. Header `{_hex(encoded[:2])}`, fingerprint"
            f" `{_hex(encoded[2:HEADER_BYTES])}`{_release(sample, encoded)}, then:\n\n"
        )
        yield "| field | type | bytes of the sample | |\n|---|---|---|---|\n"
        for piece in pieces(sample):
            yield f"| `{piece.name}` | {piece.kind} | `{_hex(piece.content)}` | {piece.doc} |\n"
        yield "\n"
        if sample.topic == "commands":
            yield from _commands()


def _release(sample: Sample, encoded: bytes) -> str:
    """Return a note if the sample is written in an older schema, so that older processes can read it."""
    newest = header_of(fastavro.schema.load_schema(schema_folder() / f"{sample.schema}.avsc"))
    if encoded[:HEADER_BYTES] == newest:
        return ""
    present = newest[2:].hex(" ")
    return f" (the oldest schema that holds this message; that of the file is `{present}`)"


def _commands() -> Iterator[str]:
    """Yield the names of the commands, grouped by ``of_services``."""
    for whose, of_services in (
        ("Commands of people and their programs", False),
        ("Commands of services and nodes only", True),
    ):
        names = sorted(
            str(each.__struct_config__.tag) for each in COMMANDS if each.of_services is of_services
        )
        yield f"{whose}: {', '.join(f'`{name}`' for name in names)}.\n\n"


def _topics() -> Iterator[str]:
    yield "| topic | key | written by | partitions | kept | largest record |\n|---|---|---|--:|---|---|\n"
    known = {sample.topic: (sample.key, sample.written_by) for sample in SAMPLES}
    known["epochs"] = ("none", "metadata-log")
    known["placements"] = ("`<cluster>/<placement>/<start token>`", "placements (Spark)")
    known["schema"] = ("`<cluster>/<kind>/<id>`", "placements (Spark)")
    for topic, spec in topic_specs(REPLICATION_FACTOR).items():
        key, written_by = known[topic]
        largest = int(spec.config.get("max.message.bytes", 1_048_588))
        kept = _kept(spec.config)
        yield (
            f"| `stele.<cluster>.{topic}` | {key} | {written_by} | {spec.partitions} | {kept} |"
            f" {largest / 1024 / 1024:.0f} MiB |\n"
        )
    yield "\n"


def _kept(config: Any) -> str:
    policy = config.get("cleanup.policy")
    days = int(config.get("retention.ms", "-1")) / (24 * 3600 * 1000)
    if policy == "compact":
        return "the newest of each key"
    if policy == "compact,delete":
        return f"the newest of each key, {days:.0f} days"
    return f"{days:.0f} day" if days > 0 else "for ever; truncated behind snapshots"


def _hex(content: bytes) -> str:
    shown = content[:SHOWN_BYTES].hex(" ")
    return f"{shown} ... ({len(content)} bytes)" if len(content) > SHOWN_BYTES else shown


def _json(message: Any) -> str:
    plain = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=str)
    shown = {name: v.hex() if isinstance(v, bytes) else v for name, v in plain.items()}
    return json.dumps(shown, indent=2)
