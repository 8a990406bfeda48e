"""The compacted topic ``placements``: each key's newest row, then a marker of the epoch reached.

Keys are ``<cluster>/<placement>/<start token>``; the marker's is ``<cluster>/epoch``. Values are Avro,
``PlacementRow`` and ``PlacementsMarker``; a row that is gone leaves a tombstone. Rows and their marker are one
transaction, so a reader with ``isolation.level`` ``read_committed`` that has met a marker holds the placements
of exactly that epoch.

The transactional id is the topic's: who opens a writer fences the one before it, ends what that one left
open, and only then reads where the topic stands. So an older row can never follow a newer marker, whoever
else still runs; a rule for readers alone would not do, for compaction keeps the last record and not the newest.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from stele.domain.messages import PlacementRow, PlacementsMarker
from stele.log.brokers import Brokers
from stele.log.codec import (
    DecodeError,
    decode_placement_row,
    decode_placements_marker,
    encode_placement_row,
    encode_placements_marker,
)
from stele.log.flows import flow_topic
from stele.log.framing import Framing
from stele.log.topic import read_topic
from stele.placements.fold import Held, HeldRows, Key

FENCE_TIMEOUT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 30.0
TRANSACTION_TIMEOUT_MS: Final = 30_000
"""How long a writer that died may hold up readers."""
POLL_EVERY: Final = 1000
_ROW_KEY: Final = re.compile(r".+/.+/-?[0-9]{1,20}", re.DOTALL)
PLAIN: Final = Framing()
"""Single-object encoding."""
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's name
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError._FATAL,  # noqa: SLF001 - what each call says after that, and after an answer that broke
    }
)
"""The producer is of no use any more; its place is taken, as a rule by another one."""


class Marker(msgspec.Struct, frozen=True):
    epoch: int = 0
    state_id: str = ""


class TopicView(msgspec.Struct, frozen=True):
    """What the topic says: rows by placement and start, of the marker's epoch."""

    marker: Marker
    rows: dict[Key, PlacementRow]
    unread: frozenset[Key] = frozenset()
    """Keys whose newest value is of a form that this build does not read."""


class WriterFenced(Exception):
    """Another process writes this topic now."""


def framing_of(text: str) -> Framing:
    """By the ids of a registry, as ``STELE_PLACEMENT_SCHEMA_IDS`` has them. Raises ValueError."""
    return Framing(text, PlacementRow.__name__, PlacementsMarker.__name__)


def read_placements(brokers: Brokers, cluster: str, framing: Framing = PLAIN) -> TopicView:
    """The topic from its beginning to its end. What cannot be read is as if it were not there, such as the JSON
    of earlier builds, or what is in the other framing: the next publication replaces it. Keys of another form
    are somebody else's, and nobody's rows.

    Raises TimeoutError, KafkaException.
    """
    marker, rows = Marker(), dict[Key, PlacementRow]()
    unread = set[Key]()
    for key, value in read_topic(brokers, flow_topic(cluster, "placements")):
        if key == _marker_key(cluster):
            marker = _marker_of(value, framing)
            continue
        at = _place_of(cluster, key)
        if at is None:
            continue
        rows.pop(at, None)
        unread.discard(at)
        try:
            if value is not None:
                rows[at] = decode_placement_row(framing.plain(value))
        except DecodeError:
            unread.add(at)
    return TopicView(marker, rows, frozenset(unread))


def _marker_key(cluster: str) -> str:
    return f"{cluster}/epoch"


def _row_key(cluster: str, placement: str, start: int) -> str:
    return f"{cluster}/{placement}/{start}"


def _place_of(cluster: str, key: str) -> Key | None:
    """The placement and start that a key names; None for a key that no writer of ours sends."""
    if not _ROW_KEY.fullmatch(key):
        return None
    placement, _, start = key.removeprefix(f"{cluster}/").rpartition("/")
    return (placement, int(start)) if key == _row_key(cluster, placement, int(start)) else None


def _marker_of(value: bytes | None, framing: Framing) -> Marker:
    try:
        found = decode_placements_marker(framing.plain(value or b""))
    except DecodeError:
        return Marker()
    return Marker(found.epoch, found.state_id)


class TopicWriter:
    """The one writer of a cluster's topic. Opening fences all others and reads where the topic stands."""

    def __init__(self, brokers: Brokers, cluster: str, framing: Framing = PLAIN) -> None:
        self._cluster = cluster
        self._framing = framing
        self._topic = flow_topic(cluster, "placements")
        self._producer = Producer(
            {
                **brokers.client(),
                "transactional.id": f"{self._topic}-writer",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(FENCE_TIMEOUT_S)
        self.view: TopicView | None = read_placements(brokers, cluster, framing)
        """Until the first publication, which brings all of the topic up to date."""
        self.epoch = self.view.marker.epoch

    def publish(
        self, marker: Marker, placements: Mapping[str, HeldRows], touched: set[Key]
    ) -> bool:
        """Send the rows at the keys and the marker; false when the topic has that epoch already.

        The first time every row that differs is sent. Raises WriterFenced, KafkaException.
        """
        if marker.epoch < self.epoch or (marker.epoch == self.epoch and self.view is None):
            return False
        rows = _rows_at(self._cluster, marker, placements, touched if self.view is None else None)
        if self.view is not None:
            rows = _differences(self.view, rows)
            if not rows and marker == self.view.marker:
                return False
        with self._transaction():
            self._send(marker, rows)
        self.view, self.epoch = None, marker.epoch
        return True

    def clear(self) -> int:
        """Take away all that the topic says, and its marker; gives how many rows that was. Only for a writer
        that has published nothing. Raises WriterFenced, KafkaException.
        """
        assert self.view is not None
        keys = set(self.view.rows) | self.view.unread
        if keys or self.epoch:
            with self._transaction():
                for placement, start in sorted(keys):
                    self._produce(_row_key(self._cluster, placement, start), None)
                self._produce(_marker_key(self._cluster), None)
            self.view, self.epoch = TopicView(Marker(), {}), 0
        return len(keys)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What is produced inside is one. Another writer's fence is met at any call: librdkafka's threads hear
        of it in the midst of rows. Raises WriterFenced, KafkaException.
        """
        try:
            self._producer.begin_transaction()
            yield
            self._producer.commit_transaction(SEND_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in _FENCED:
                raise WriterFenced(f"Another process writes {self._topic} now.") from error
            raise

    def _send(self, marker: Marker, rows: Mapping[Key, PlacementRow | None]) -> None:
        for number, (placement, start) in enumerate(sorted(rows)):
            row = rows[placement, start]
            key = _row_key(self._cluster, placement, start)
            self._produce(key, None if row is None else encode_placement_row(row))
            if number % POLL_EVERY == POLL_EVERY - 1:
                self._producer.flush(SEND_TIMEOUT_S)
        told = PlacementsMarker(cluster=self._cluster, epoch=marker.epoch, state_id=marker.state_id)
        self._produce(_marker_key(self._cluster), encode_placements_marker(told))

    def _produce(self, key: str, value: bytes | None) -> None:
        framed = None if value is None else self._framing.framed(value)
        self._producer.produce(self._topic, framed, key.encode(), partition=0)


def _rows_at(
    cluster: str,
    marker: Marker,
    placements: Mapping[str, HeldRows],
    keys: set[Key] | None,
) -> dict[Key, PlacementRow | None]:
    """The rows at the keys, None for one that is gone; all rows when no keys are given."""
    if keys is None:
        keys = {(name, start) for name, rows in placements.items() for start in rows}
    found: dict[Key, PlacementRow | None] = {}
    for name, start in keys:
        held = placements.get(name, {}).get(start)
        found[name, start] = None if held is None else _row_of(cluster, marker, name, held)
    return found


def _row_of(cluster: str, marker: Marker, placement: str, held: Held) -> PlacementRow:
    row = held.row
    return PlacementRow(
        cluster=cluster,
        placement=placement,
        range_start=row.start,
        range_end=row.end,
        read_replicas=row.reads,
        write_replicas=row.writes,
        other_replicas=row.other,
        version=row.version,
        version_before=row.version_before,
        from_epoch=held.from_epoch,
        shards=row.shards,
        other_shards=row.other_shards,
        epoch=marker.epoch,
        state_id=marker.state_id,
    )


def _differences(
    view: TopicView, rows: dict[Key, PlacementRow | None]
) -> dict[Key, PlacementRow | None]:
    """What must be sent so that the topic, being as in the view, holds these rows."""
    known = set(view.rows) | view.unread
    gone: dict[Key, PlacementRow | None] = dict.fromkeys(known - set(rows))
    return gone | {key: row for key, row in rows.items() if not _same(view.rows.get(key), row)}


def _same(one: PlacementRow | None, other: PlacementRow | None) -> bool:
    if one is None or other is None:
        return one is other
    change = {"epoch": other.epoch, "state_id": other.state_id}
    return msgspec.structs.replace(one, **change) == other
