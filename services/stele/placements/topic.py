"""Compacted topics ``placements`` and ``schema``: each key's newest row, then a marker of the epoch.

Keys of ``placements`` are ``<cluster>/<placement>/<start token>``; a marker's is
``<cluster>/epoch``. Values are Avro, ``PlacementRow`` and ``PlacementsMarker``; a deleted row
leaves a tombstone. Rows and their marker are one transaction. A reader with ``isolation.level``
``read_committed`` that has read a marker therefore holds the rows of exactly that epoch. A ``Form``
has what differs between the two topics.

The transactional id belongs to the topic. A process that opens a writer fences the previous one and
ends its open transaction. Only then it reads the topic's state. An older row can therefore never
follow a newer marker, whatever other processes run. A rule for readers alone would not suffice,
because compaction keeps the last record and not the newest.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import msgspec
import stamina
from confluent_kafka import KafkaError, KafkaException, Producer

from stele.domain.messages import PlacementRow, PlacementsMarker, SchemaObject
from stele.log.brokers import Brokers
from stele.log.chain import MAGIC
from stele.log.codec import (
    DecodeError,
    Framing,
    decode_placement_row,
    decode_placements_marker,
    encode_placement_row,
    encode_placements_marker,
)
from stele.log.ends import read_topic
from stele.log.flows import flow_topic
from stele.log.schemas import load_schemas
from stele.placements.fold import CurrentRow, HeldRows, Key
from stele.runtime.logs import get_logger

FENCE_TIMEOUT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 30.0
TRANSACTION_TIMEOUT_MS: Final = 30_000
"""Longest time for which a dead writer's transaction may block readers."""
POLL_EVERY: Final = 1000
MAX_ROW_BYTES: Final = 8 * 1024 * 1024
"""Largest record, as in the topic of the schema. Rows of placements are small."""
_ROW_KEY: Final = re.compile(r".+/.+/-?[0-9]{1,20}", re.DOTALL)
PLAIN: Final = Framing()
"""Single-object encoding."""
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's name
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError._FATAL,  # noqa: SLF001 - all later calls return it, also after a broken answer
    }
)
"""Errors after which the producer is unusable. Usually another one has replaced it."""


class Marker(msgspec.Struct, frozen=True):
    epoch: int = 0
    state_id: str = ""


K = TypeVar("K", bound=tuple[str, Any])
R = TypeVar("R", bound=msgspec.Struct)
C = TypeVar("C")


class TopicView(msgspec.Struct, Generic[K, R], frozen=True):
    """Content of the topic: rows by key, at the marker's epoch."""

    marker: Marker
    rows: dict[K, R]
    unread: frozenset[K] = frozenset()
    """Keys whose newest value has a form that this build cannot read."""


class Form(msgspec.Struct, Generic[K, R, C], frozen=True, kw_only=True):
    """The parts in which topics differ: keys ``K``, rows ``R``, and the content ``C`` of the rows.

    ``rows`` returns the rows at the given keys, None for a deleted one; without keys, all rows.
    Rows have the fields ``epoch`` and ``state_id`` of the marker that follows. ``kept`` returns
    content that later changes do not touch.
    """

    flow: str
    text_of: Callable[[str, K], str]
    """Returns the key of a record, from the name of the cluster and a row's key."""
    key_of: Callable[[str, str], K | None]
    """The inverse; None for a key that no writer of ours sends."""
    encode: Callable[[R], bytes]
    decode: Callable[[bytes], R]
    rows: Callable[[str, Marker, C, Set[K] | None], dict[K, R | None]]
    kept: Callable[[C], C]


class WriterFenced(Exception):
    """Another process writes this topic now."""


def framing_of(text: str) -> Framing:
    """Return the framing for the ids of ``STELE_PLACEMENT_SCHEMA_IDS``. Raises ValueError.

    An id of ``SchemaObject`` is optional, because earlier builds had no topic of the schema.
    """
    names = [PlacementRow.__name__, PlacementsMarker.__name__]
    return Framing(text, *names, *([SchemaObject.__name__] if has_schema_id(text) else []))


def has_schema_id(text: str) -> bool:
    """Return whether the ids include one of ``SchemaObject``."""
    headers = load_schemas().releases[SchemaObject.__name__]
    return any(header[len(MAGIC) :].hex() in text for header in headers)


def read_rows(
    brokers: Brokers, cluster: str, form: Form[K, R, C], framing: Framing = PLAIN
) -> TopicView[K, R]:
    """Read a topic from its beginning to its end.

    Unreadable values count as missing, such as the JSON of earlier builds, or values in the other
    framing. The next publication replaces them. Keys of another form are from other programs and
    are ignored.

    Raises TimeoutError, KafkaException.
    """
    marker, rows = Marker(), dict[K, R]()
    unread = set[K]()
    for key, value in read_topic(brokers, flow_topic(cluster, form.flow)):
        if key == _marker_key(cluster):
            marker = _marker_of(value, framing)
            continue
        at = form.key_of(cluster, key)
        if at is None:
            continue
        rows.pop(at, None)
        unread.discard(at)
        try:
            if value is not None:
                rows[at] = form.decode(framing.plain(value))
        except DecodeError:
            unread.add(at)
    return TopicView(marker, rows, frozenset(unread))


def _marker_key(cluster: str) -> str:
    return f"{cluster}/epoch"


def _row_key(cluster: str, key: Key) -> str:
    placement, start = key
    return f"{cluster}/{placement}/{start}"


def _place_of(cluster: str, key: str) -> Key | None:
    """Return the placement and start of a key; None for a key that no writer of ours sends."""
    if not _ROW_KEY.fullmatch(key):
        return None
    placement, _, start = key.removeprefix(f"{cluster}/").rpartition("/")
    at = placement, int(start)
    return at if key == _row_key(cluster, at) else None


def _marker_of(value: bytes | None, framing: Framing) -> Marker:
    try:
        found = decode_placements_marker(framing.plain(value or b""))
    except DecodeError:
        return Marker()
    return Marker(found.epoch, found.state_id)


class TopicWriter(Generic[K, R, C]):
    """The one writer of a cluster's topic.

    Opening fences all others and then reads the topic's state.
    """

    def __init__(
        self, brokers: Brokers, cluster: str, form: Form[K, R, C], framing: Framing = PLAIN
    ) -> None:
        self._cluster = cluster
        self._form = form
        self._framing = framing
        self._topic = flow_topic(cluster, form.flow)
        self._producer = Producer(
            {
                **brokers.client(),
                "transactional.id": f"{self._topic}-writer",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
                "message.max.bytes": MAX_ROW_BYTES,
                "log_level": 0,
            }
        )
        # Fence first, then read. After the fence no older writer can change what is read.
        self._producer.init_transactions(FENCE_TIMEOUT_S)
        self.view: TopicView[K, R] | None = read_rows(brokers, cluster, form, framing)
        """Content of the topic until the first publication, which brings all of it up to date."""
        self.epoch = self.view.marker.epoch

    def publish(self, marker: Marker, content: C, touched: Set[K]) -> bool:
        """Send the rows at the keys, and the marker.

        Return False when the topic has that epoch already.

        The first call sends every row that differs. Raises WriterFenced, KafkaException.
        """
        if marker.epoch < self.epoch or (marker.epoch == self.epoch and self.view is None):
            return False
        keys = touched if self.view is None else None
        rows = self._form.rows(self._cluster, marker, content, keys)
        if self.view is not None:
            rows = _differences(self.view, rows)
            if not rows and marker == self.view.marker:
                return False
        with self._transaction():
            self._send(marker, rows)
        self.view, self.epoch = None, marker.epoch
        return True

    def clear(self) -> int:
        """Delete all rows of the topic and its marker. Return the number of rows.

        Only for a writer that has not published. Raises WriterFenced, KafkaException.
        """
        assert self.view is not None
        keys = set(self.view.rows) | self.view.unread
        if keys or self.epoch:
            with self._transaction():
                for key in sorted(keys):
                    self._produce(self._form.text_of(self._cluster, key), None)
                self._produce(_marker_key(self._cluster), None)
            self.view, self.epoch = TopicView(Marker(), {}), 0
        return len(keys)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run one transaction. Raises WriterFenced, KafkaException.

        Any call may report another writer's fence, because librdkafka's threads detect it while
        rows are sent.
        """
        try:
            self._producer.begin_transaction()
            yield
            self._producer.commit_transaction(SEND_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in _FENCED:
                raise WriterFenced(f"Another process writes {self._topic} now.") from error
            raise

    def _send(self, marker: Marker, rows: Mapping[K, R | None]) -> None:
        for number, key in enumerate(sorted(rows)):
            row = rows[key]
            value = None if row is None else self._form.encode(row)
            self._produce(self._form.text_of(self._cluster, key), value)
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
    keys: Set[Key] | None,
) -> dict[Key, PlacementRow | None]:
    """Return the rows at the keys, None for a deleted one; all rows without keys."""
    if keys is None:
        keys = {(name, start) for name, rows in placements.items() for start in rows}
    found: dict[Key, PlacementRow | None] = {}
    for name, start in keys:
        held = placements.get(name, {}).get(start)
        found[name, start] = None if held is None else _row_of(cluster, marker, name, held)
    return found


def _row_of(cluster: str, marker: Marker, placement: str, held: CurrentRow) -> PlacementRow:
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


def _copied(placements: Mapping[str, HeldRows]) -> dict[str, HeldRows]:
    return {name: dict(rows) for name, rows in placements.items()}


PLACEMENTS: Final[Form[Key, PlacementRow, Mapping[str, HeldRows]]] = Form(
    flow="placements",
    text_of=_row_key,
    key_of=_place_of,
    encode=encode_placement_row,
    decode=decode_placement_row,
    rows=_rows_at,
    kept=_copied,
)


def _differences(view: TopicView[K, R], rows: dict[K, R | None]) -> dict[K, R | None]:
    """Return what must be sent so that the topic, whose content is the view, holds these rows."""
    known = set(view.rows) | view.unread
    gone: dict[K, R | None] = dict.fromkeys(known - set(rows))
    return gone | {key: row for key, row in rows.items() if not _same(view.rows.get(key), row)}


def _same(one: R | None, other: R | None) -> bool:
    if one is None or other is None:
        return one is other
    change = {name: getattr(other, name) for name in ("epoch", "state_id")}
    return msgspec.structs.replace(one, **change) == other


# The writers of a fleet's topics.
#
# They publish concurrently, because each mostly waits for the brokers.


MOST_WRITERS: Final = 512
"""Limit of open producers; each has threads and connections. The longest idle one is closed.

Opening it again takes a fence and a reading of its topic.
"""

ATTEMPTS: Final = 8
"""Attempts of a fenced writer. Two jobs that hand a cluster over fence each other a few times.

A writer that is fenced more often has a permanent rival.
"""
LONGEST_WAIT_S: Final = 3.0


class Writers(Generic[K, R, C]):
    """One writer of a form for each cluster, opened on demand.

    One thread at a time may use a cluster.
    """

    def __init__(self, brokers: Brokers, form: Form[K, R, C], framing: Framing = PLAIN) -> None:
        self.form = form
        self._brokers = brokers
        self._framing = framing
        self._lock = threading.Lock()
        self._open: OrderedDict[str, TopicWriter[K, R, C]] = OrderedDict()

    def publish(self, cluster: str, marker: Marker, content: C, touched: Set[K]) -> None:
        """Publish as ``TopicWriter.publish`` does.

        A fenced writer is opened again, and reads the other's rows.

        Raises WriterFenced when the other process continues to write, KafkaException.
        """
        try:
            for attempt in stamina.retry_context(
                on=WriterFenced, attempts=ATTEMPTS, timeout=None, wait_max=LONGEST_WAIT_S
            ):
                with attempt:
                    self._publish(cluster, marker, content, touched)
        except WriterFenced as error:
            raise WriterFenced(
                f"Several processes write the topic {self.form.flow} of {cluster}: stop all but one."
            ) from error

    def _publish(self, cluster: str, marker: Marker, content: C, touched: Set[K]) -> None:
        try:
            self._writer(cluster).publish(marker, content, touched)
        except WriterFenced:
            self.forget(cluster)
            raise

    def forget(self, cluster: str) -> None:
        """Drop the writer. The next publication opens another, which reads the topic's state."""
        with self._lock:
            self._open.pop(cluster, None)

    def _writer(self, cluster: str) -> TopicWriter[K, R, C]:
        with self._lock:
            found = self._open.get(cluster)
        if found is None:
            found = TopicWriter(self._brokers, cluster, self.form, self._framing)
        with self._lock:
            self._open[cluster] = found
            self._open.move_to_end(cluster)
            if len(self._open) > MOST_WRITERS:
                self._open.popitem(last=False)
        return found


# Publishes the content of folds.
#
# If a cluster's topic cannot be written, only this topic waits.
#
# Its newest rows are kept, and a separate thread retries. Tables and all other clusters continue.


TRY_AGAIN_S: Final = 10.0
"""Interval between attempts.

One may wait for the brokers for a minute, and delays only other retries.
"""
LOOK_S: Final = 0.2

log = get_logger(__name__)


class _Waiting(msgspec.Struct, Generic[C]):
    """Content that the topic of a cluster lacks.

    A newer object replaces it, which shows that it is outdated.
    """

    marker: Marker
    content: C


class Publishing(Generic[K, R, C]):
    """``published`` is the epoch of each cluster's topic.

    ``stopped`` is why a topic cannot be written.

    Its text includes what to do. One thread at a time may publish a cluster; ``run`` belongs to
    another thread.
    """

    def __init__(
        self, writers: Writers[K, R, C], on_stop: Callable[[str, Exception, str], None]
    ) -> None:
        self.published: dict[str, int] = {}
        self.stopped: dict[str, str] = {}
        self._writers = writers
        self._on_stop = on_stop
        self._lock = threading.Condition()
        self._waiting: dict[str, _Waiting[C]] = {}

    def publish(self, cluster: str, marker: Marker, content: C, touched: Set[K]) -> None:
        """Publish as ``TopicWriter.publish`` does. After a failure ``run`` retries."""
        if self._leave(cluster, marker, content):
            return
        try:
            self._writers.publish(cluster, marker, content, touched)
        except Exception as error:  # of this cluster alone; the job notices missing brokers
            self._stop(cluster, marker, content, error)
        else:
            self.published[cluster] = marker.epoch

    def run(self, is_over: Callable[[], bool]) -> None:
        """Retry until ``is_over`` returns True."""
        tried_s = time.monotonic()
        while not is_over():
            if self._waiting and time.monotonic() - tried_s >= TRY_AGAIN_S:
                for cluster in sorted(self._waiting):
                    if not is_over():
                        self._try_again(cluster)
                tried_s = time.monotonic()
            else:
                with self._lock:
                    self._lock.wait(LOOK_S)

    def _leave(self, cluster: str, marker: Marker, content: C) -> bool:
        """Return whether the cluster waits. If so, its newest rows replace the waiting ones."""
        with self._lock:
            waits = cluster in self._waiting
            if waits:
                self._waiting[cluster] = self._kept(marker, content)
            return waits

    def _kept(self, marker: Marker, content: C) -> _Waiting[C]:
        return _Waiting(marker, self._writers.form.kept(content))

    def _stop(self, cluster: str, marker: Marker, content: C, error: Exception) -> None:
        flow = self._writers.form.flow
        why = (
            f"Cluster {cluster}: its topic {flow} stays as it is, since it cannot be written: {error}."
            f" Its tables continue. It is retried every {TRY_AGAIN_S:g} s: check the topic's settings and"
            " ACLs, and that no other program writes there."
        )
        with self._lock:
            self._waiting[cluster] = self._kept(marker, content)
            self.stopped = {**self.stopped, cluster: why}
        log.error("a topic cannot be written", topic=flow, cluster=cluster, why=why)
        self._on_stop(cluster, error, why)

    def _try_again(self, cluster: str) -> None:
        """Publish with a new writer, which sends all rows that the topic lacks."""
        waiting = self._waiting[cluster]
        self._writers.forget(cluster)
        try:
            self._writers.publish(cluster, waiting.marker, waiting.content, set())
        except Exception as error:  # the next attempt may succeed
            flow, why = self._writers.form.flow, str(error)
            log.info("a topic cannot be written yet", topic=flow, cluster=cluster, why=why)
            return
        with self._lock:
            self.published[cluster] = waiting.marker.epoch
            if self._waiting[cluster] is not waiting:
                return  # something newer came meanwhile
            del self._waiting[cluster]
            self.stopped = {c: why for c, why in self.stopped.items() if c != cluster}
        log.info("a topic is written again", topic=self._writers.form.flow, cluster=cluster)
