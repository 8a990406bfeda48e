"""Rates of the pure parts, one thread, no broker: encode, decode, decide, evolve, fold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from io import BytesIO
from typing import TypeVar

from fastavro import schemaless_reader, schemaless_writer

from benchmarks import payload
from benchmarks.numbers import Rate
from stele.domain.commands import Envelope, FoundCluster
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.log.avro_writer import writer_of
from stele.log.codec import decode_envelope, decode_epoch, encode_envelope, encode_epoch
from stele.log.fold import Fold
from stele.log.pipeline import CommitPipeline
from stele.log.schemas import HEADER_BYTES, Schema, load_schemas
from stele.metadata_log.writer import make_ids

T = TypeVar("T")
REPEAT = 20_000


def rates() -> tuple[list[Rate], int]:
    """All rates, and the size in bytes of the record that they were measured with."""
    envelopes = [payload.envelope(n) for n in range(REPEAT)]
    records = chain(envelopes)
    epochs = [decode_epoch(value) for value in records]
    image = _begun(records)
    values = [encode_envelope(envelope) for envelope in envelopes]
    found = [
        _rate("encode an epoch", epochs, encode_epoch),
        _rate("decode an epoch", records, decode_epoch),
        _rate("decode a command", values, decode_envelope),
        _rate("decide", envelopes, lambda envelope: decide(image, envelope, 0)),
        _evolve(epochs),
        _fold(records),
        *_writers(records),
    ]
    return found, len(records[-1])


def chain(envelopes: list[Envelope]) -> list[bytes]:
    """A log's records: a cluster, then one epoch for each command."""
    sent = list[bytes]()
    pipeline = CommitPipeline(Fold(), make_ids(), asyncio.new_event_loop())
    created = Envelope(request_id=payload.request_id(), command=FoundCluster("bench/1"))
    for offset, envelope in enumerate((created, *envelopes)):
        pipeline.submit(envelope)
        sent += pipeline.take_ready().records
        pipeline.on_record(offset, sent[-1])
    return sent


def _begun(records: list[bytes]) -> Image:
    fold = Fold()
    fold.offer(0, records[0])
    return fold.image


def _evolve(epochs: list[Epoch]) -> Rate:
    image, began_s = EMPTY, time.perf_counter()
    for epoch in epochs:
        image = evolve(image, epoch)
    return Rate("evolve", len(epochs), time.perf_counter() - began_s)


def _fold(records: list[bytes]) -> Rate:
    fold, began_s = Fold(), time.perf_counter()
    for offset, value in enumerate(records):
        fold.offer(offset, value)
    return Rate("fold (decode + evolve)", len(records), time.perf_counter() - began_s)


def _writers(records: list[bytes]) -> list[Rate]:
    """All of a record by the writer that its schema becomes, and by fastavro."""
    header = records[-1][:HEADER_BYTES]
    _, schema = load_schemas().by_header[header]
    write, same = writer_of(schema), [each for each in records if each.startswith(header)]
    bodies = [
        schemaless_reader(BytesIO(each[HEADER_BYTES:]), schema, None, return_record_name=True)
        for each in same
    ]
    return [
        _rate("write a record, compiled", bodies, lambda body: write(bytearray(), body)),
        _rate("write a record, fastavro", bodies, lambda body: _by_fastavro(schema, body)),
    ]


def _by_fastavro(schema: Schema, body: object) -> None:
    schemaless_writer(BytesIO(), schema, body)


def _rate(what: str, items: list[T], run: Callable[[T], object]) -> Rate:
    began_s = time.perf_counter()
    for item in items:
        run(item)
    return Rate(what, len(items), time.perf_counter() - began_s)
