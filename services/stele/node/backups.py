"""The backup folder: files of table snapshots, with a folder for each node.

``<folder>/<cluster id>/<snapshot id>/<node id>/`` holds ``begun.json``, at least one Avro container
for each tablet, and finally ``manifest.json``. Every file is synced before the manifest that names
it. Nodes may share the folder. Each node writes and deletes only in its own part, and reads the
others.

A snapshot is deleted if the log has it neither as complete nor as being taken. It must belong to
the same log, and have begun at an epoch that this node has applied. Folders of other logs are kept,
and also folders that began in epochs lost by a recovery.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from fastavro import parse_schema, reader, writer

from stele.domain.image import Image
from stele.domain.model.cluster import EpochStatus, epoch_status
from stele.domain.model.table_snapshots import TableSnapshot
from stele.domain.names import TransitionState
from stele.domain.ring.quorum import quorum_of
from stele.domain.ring.ranges import MIN_TOKEN, Range
from stele.domain.tablets.maps import TOKEN_BITS, tablet_of
from stele.log.archive.container import SYNC_BYTES, sync_file, sync_folder
from stele.node.cells import ROW, TOMBSTONE, CellKind, StoredCell
from stele.node.commits import uncancelled
from stele.runtime.logs import get_logger

# Manifests: the files that a node wrote for a table snapshot, by tablet.
#
# The log has the SHA-256 of each manifest, and the manifest that of each file. A damaged or missing
# file is therefore detected before any of its rows is used.


MANIFEST: Final = "manifest.json"
FORM: Final = 1


class SnapshotFile(msgspec.Struct, frozen=True):
    """An Avro container of rows, ordered by token and key."""

    name: str
    sha256: str
    size_bytes: int
    rows: int


class SnapshotTablet(msgspec.Struct, frozen=True):
    """The rows of a tablet at one of its replicas.

    ``replicas`` lists all replicas that the tablet had.
    """

    tablet: int
    replicas: tuple[str, ...]
    files: tuple[SnapshotFile, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one node wrote for a snapshot.

    ``tablets`` is the number of tablets in the table's map.
    """

    form: int = FORM
    cluster_id: str
    snapshot_id: str
    name: str
    table: str
    table_id: str
    data_id: str
    epoch: int
    node_id: str
    tablets: int
    rows: int
    size_bytes: int
    written: tuple[SnapshotTablet, ...]


class Missing(Exception):
    """Some acknowledged rows cannot be read. The text names what is missing."""


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(_ENCODER.encode(manifest), indent=1)


def decode_manifest(content: bytes) -> Manifest:
    """Decode a manifest. Raises msgspec.DecodeError."""
    return _DECODER.decode(content)


def tablets_within(count: int, range_: Range) -> range:
    """Return the tablets, in a map of ``count``, that share tokens with a range."""
    first = (range_.start + 1 - MIN_TOKEN) * count >> TOKEN_BITS
    return range(first, tablet_of(count, range_.end) + 1)


def files_of(
    range_: Range, snapshot: TableSnapshot, manifests: Mapping[str, Manifest]
) -> list[tuple[str, SnapshotFile]]:
    """Return the files that hold a range's rows, each with the node that wrote it.

    ``manifests`` holds the readable manifests by node.

    Raises Missing if they are of too few replicas. Each quorum that acknowledged a write must
    include one of them.
    """
    found = list[tuple[str, SnapshotFile]]()
    for tablet in tablets_within(snapshot.tablets, range_):
        wrote = [
            (node_id, each)
            for node_id, manifest in sorted(manifests.items())
            for each in manifest.written
            if each.tablet == tablet
        ]
        replicas = wrote[0][1].replicas if wrote else ()
        if len(wrote) < quorum_of(len(replicas)):
            had = (
                f"{', '.join(n for n, _ in wrote)} of {', '.join(replicas)}" if wrote else "nobody"
            )
            raise Missing(
                f"tablet {tablet} of snapshot {snapshot.name} can be read of {had}, which is no quorum"
            )
        found += [(node_id, file) for node_id, each in wrote for file in each.files]
    return found


T = TypeVar("T")

BEGUN: Final = "begun.json"
MARKER_BYTES: Final = 16
"""Bytes of the marker between the blocks of an Avro container."""
_FILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_SCHEMA: Final = parse_schema(
    {
        "type": "record",
        "name": "stele.SnapshotRow",
        "fields": [
            {"name": "token", "type": "long"},
            {"name": "key", "type": "bytes"},
            {"name": "timestamp", "type": "long"},
            {"name": "tombstone", "type": "boolean"},
            {"name": "value", "type": "bytes"},
            {"name": "has_columns", "type": "boolean", "default": False},
        ],
    }
)

log = get_logger(__name__)


class Begun(msgspec.Struct, frozen=True):
    """The log and the epoch that requested the snapshot."""

    log_id: str
    epoch: int


class Backups:
    """The backup folder of one node.

    One thread writes and deletes files, in the order of the calls.
    """

    def __init__(self, folder: Path, node_id: str) -> None:
        self.node_id = node_id
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "backups")
        self._known: frozenset[str] | None = None
        self._sweeps = set[asyncio.Task[None]]()

    async def close(self) -> None:
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def begin(self, image: Image, snapshot_id: str, epoch: int) -> None:
        """Create an empty folder for this node's files. Raises OSError."""
        folder = self._of(image.cluster_id, snapshot_id, self.node_id)
        begun = Begun(image.log_id.hex(), epoch)

        def work() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _write(folder / BEGUN, msgspec.json.encode(begun))
            for each in (folder, *folder.parents[:4]):
                sync_folder(each)

        await self._run(work)

    async def write_rows(
        self, cluster_id: str, snapshot_id: str, name: str, rows: Sequence[StoredCell]
    ) -> SnapshotFile:
        """Write a file and sync it. Raises OSError."""
        path = self._of(cluster_id, snapshot_id, self.node_id) / name

        def work() -> SnapshotFile:
            content = encode_rows(rows)
            _write(path, content)
            return SnapshotFile(name, sha256(content).hexdigest(), len(content), len(rows))

        return await self._run(work)

    async def write_manifest(self, cluster_id: str, snapshot_id: str, content: bytes) -> None:
        """Write the manifest, after all files that it names are on the disk. Raises OSError."""
        folder = self._of(cluster_id, snapshot_id, self.node_id)

        def work() -> None:
            sync_folder(folder)
            new = folder / f"{MANIFEST}.new"
            _write(new, content)
            # A manifest under this name is complete: a crash leaves only the ``.new`` file.
            new.replace(folder / MANIFEST)
            sync_folder(folder)

        await self._run(work)

    async def read(
        self,
        cluster_id: str,
        snapshot_id: str,
        node_id: str,
        name: str,
        offset: int = 0,
        limit_bytes: int = -1,
    ) -> tuple[int, bytes] | None:
        """Return the size of a file and a piece of its content; None when it is not here.

        Raises OSError.
        """
        # The name comes from another node: it must not leave the folder.
        if not _FILE_NAME.fullmatch(name):
            return None
        path = self._of(cluster_id, snapshot_id, node_id) / name

        def work() -> tuple[int, bytes] | None:
            try:
                with path.open("rb") as file:
                    size_bytes = file.seek(0, os.SEEK_END)
                    file.seek(offset)
                    return size_bytes, file.read(limit_bytes)
            except FileNotFoundError:
                return None

        return await self._run(work)

    async def finished(self, image: Image, snapshot_id: str, epoch: int) -> bytes | None:
        """Return the manifest if the snapshot is complete for this log and epoch.

        Otherwise the result is None.

        Raises OSError.
        """
        where = image.cluster_id, snapshot_id, self.node_id
        begun = await self.read(*where, BEGUN)
        if begun is None or begun[1] != msgspec.json.encode(Begun(image.log_id.hex(), epoch)):
            return None
        found = await self.read(*where, MANIFEST)
        return None if found is None else found[1]

    def follow(self, image: Image) -> None:
        """Delete this node's files of snapshots that the log no longer has."""
        known = _known(image)
        if image.cluster_id and known != self._known:
            self._known = known
            task = self._loop.create_task(self._sweep(image, known))
            self._sweeps.add(task)
            task.add_done_callback(self._sweeps.discard)

    async def _sweep(self, image: Image, known: frozenset[str]) -> None:
        def work() -> None:
            for folder in (self._folder / image.cluster_id).glob(f"*/{self.node_id}"):
                if folder.parent.name not in known and _is_of(image, folder):
                    _delete(folder)
                    log.info("deleted a snapshot", snapshot_id=folder.parent.name)
                    if not any(folder.parent.iterdir()):
                        folder.parent.rmdir()

        try:
            await self._run(work)
        except OSError as error:
            self._known = None  # the next epoch retries
            log.warning("a snapshot could not be deleted", why=str(error))

    def _of(self, cluster_id: str, snapshot_id: str, node_id: str) -> Path:
        return self._folder / cluster_id / snapshot_id / node_id

    async def _run(self, work: Callable[[], T]) -> T:
        return await uncancelled(self._loop.run_in_executor(self._thread, work))


def _delete(folder: Path) -> None:
    """Delete a snapshot's folder. Raises OSError.

    ``begun.json`` goes last. After a crash the next sweep can still identify the folder, and
    continues.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != BEGUN:
            path.unlink()
    shutil.rmtree(folder)


def encode_rows(rows: Sequence[StoredCell]) -> bytes:
    """Return an Avro container of the rows.

    The snapshot records the data's id. Equal rows give equal bytes.
    """
    found = io.BytesIO()
    sync = sha256(msgspec.json.encode(rows)).digest()[:SYNC_BYTES]
    writer(found, _SCHEMA, (_record(row) for row in rows), sync_marker=sync)
    return found.getvalue()


def decode_rows(content: bytes, data_id: str) -> list[StoredCell]:
    """Return the rows of a container as data of ``data_id``, which may be another table's."""
    return [
        StoredCell(data_id, r["token"], r["key"], r["timestamp"], _kind(r), r["value"])
        for r in reader(io.BytesIO(content))
        if isinstance(r, dict)
    ]


def _record(row: StoredCell) -> dict[str, object]:
    return {
        **row._asdict(),
        "tombstone": row.kind == TOMBSTONE,
        "has_columns": row.kind == ROW,
    }


def _kind(record: Mapping[str, Any]) -> CellKind:
    # Files of earlier releases have no rows with columns.
    return ROW if record.get("has_columns") else record["tombstone"]


def _known(image: Image) -> frozenset[str]:
    """Return the ids of snapshots that are complete or being taken."""
    taken = (t for t in image.topology.transitions.values() if t.state is TransitionState.SNAPSHOT)
    return frozenset({*image.table_snapshots.snapshots, *(t.transition_id for t in taken)})


def _is_of(image: Image, folder: Path) -> bool:
    """Return whether this log began the folder, at an epoch that the image has."""
    try:
        begun = msgspec.json.decode((folder / BEGUN).read_bytes(), type=Begun)
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    status = epoch_status(image.founding, begun.log_id, begun.epoch)
    return status in (EpochStatus.HERE, EpochStatus.KEPT) and begun.epoch <= image.epoch


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)
