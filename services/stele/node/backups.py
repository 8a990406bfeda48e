"""The backup folder: files of snapshots of tables, those of one node in a folder of its own.

``<folder>/<cluster id>/<snapshot id>/<node id>/`` holds ``begun.json``, one Avro container or more for each
tablet, and at last ``manifest.json``. Every file is synced before the manifest that names it. The folder may be
shared by nodes: each writes and deletes in its own alone, and reads those of others.

What the log does not know is deleted: of the same log, begun at an epoch that this node has applied, of a
snapshot that is neither under way nor there. Folders of other logs are left alone, and so are those that were
begun in epochs that a recovery has lost.
"""

import asyncio
import io
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from fastavro import parse_schema, reader, writer

from stele.domain.cluster.lineage import Standing, standing
from stele.domain.image import Image
from stele.domain.names import TransitionState
from stele.log.archive.container import SYNC_BYTES
from stele.log.archive.files import sync_file, sync_folder
from stele.node.cells import Row
from stele.node.commits import uncancelled
from stele.node.manifests import MANIFEST, SnapshotFile
from stele.runtime.logs import get_logger

T = TypeVar("T")

BEGUN: Final = "begun.json"
MARKER_BYTES: Final = 16
"""What parts the blocks of an Avro container."""
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
        ],
    }
)

log = get_logger(__name__)


class Begun(msgspec.Struct, frozen=True):
    """Which log asked for it, and in which epoch."""

    log_id: str
    epoch: int


class Backups:
    """One node's backup folder. Its files are written and deleted in one thread, in the order of asking."""

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
        """An empty folder for this node's files. Raises OSError."""
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
        self, cluster_id: str, snapshot_id: str, name: str, rows: Sequence[Row]
    ) -> SnapshotFile:
        """Write a file and sync it. Raises OSError."""
        path = self._of(cluster_id, snapshot_id, self.node_id) / name

        def work() -> SnapshotFile:
            content = encode_rows(rows)
            _write(path, content)
            return SnapshotFile(name, sha256(content).hexdigest(), len(content), len(rows))

        return await self._run(work)

    async def write_manifest(self, cluster_id: str, snapshot_id: str, content: bytes) -> None:
        """The last of the files: what it names is on the disk by then. Raises OSError."""
        folder = self._of(cluster_id, snapshot_id, self.node_id)

        def work() -> None:
            sync_folder(folder)
            new = folder / f"{MANIFEST}.new"
            _write(new, content)
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
        """The size of a file, and a piece of it; None when it is not here. Raises OSError."""
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
        """The manifest of what this node has written whole, for this log in this epoch. Raises OSError."""
        where = image.cluster_id, snapshot_id, self.node_id
        begun = await self.read(*where, BEGUN)
        if begun is None or begun[1] != msgspec.json.encode(Begun(image.log_id.hex(), epoch)):
            return None
        found = await self.read(*where, MANIFEST)
        return None if found is None else found[1]

    def follow(self, image: Image) -> None:
        """Delete what this node has of snapshots that are gone, whenever the log says so."""
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
            self._known = None  # the next epoch tries it again
            log.warning("a snapshot could not be deleted", why=str(error))

    def _of(self, cluster_id: str, snapshot_id: str, node_id: str) -> Path:
        return self._folder / cluster_id / snapshot_id / node_id

    async def _run(self, work: Callable[[], T]) -> T:
        return await uncancelled(self._loop.run_in_executor(self._thread, work))


def _delete(folder: Path) -> None:
    """What says whose it is goes last, so that who is killed meanwhile goes on later. Raises OSError."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != BEGUN:
            path.unlink()
    shutil.rmtree(folder)


def encode_rows(rows: Sequence[Row]) -> bytes:
    """An Avro container; the data's id is the snapshot's. Equal rows give equal bytes."""
    found = io.BytesIO()
    sync = sha256(msgspec.json.encode(rows)).digest()[:SYNC_BYTES]
    writer(found, _SCHEMA, (_record(row) for row in rows), sync_marker=sync)
    return found.getvalue()


def decode_rows(content: bytes, data_id: str) -> list[Row]:
    """Rows of the data with this id, be it that of another table."""
    return [
        Row(data_id, r["token"], r["key"], r["timestamp"], r["tombstone"], r["value"])
        for r in reader(io.BytesIO(content))
        if isinstance(r, dict)
    ]


def _record(row: Row) -> dict[str, object]:
    return {name: value for name, value in row._asdict().items() if name != "keyspace"}


def _known(image: Image) -> frozenset[str]:
    """Ids of snapshots that are there, or are being taken."""
    taken = (t for t in image.topology.transitions.values() if t.state is TransitionState.SNAPSHOT)
    return frozenset({*image.table_snapshots.snapshots, *(t.transition_id for t in taken)})


def _is_of(image: Image, folder: Path) -> bool:
    """It was begun by this log, at an epoch that the image has."""
    try:
        begun = msgspec.json.decode((folder / BEGUN).read_bytes(), type=Begun)
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    stands = standing(image.founding, begun.log_id, begun.epoch)
    return stands in (Standing.HERE, Standing.KEPT) and begun.epoch <= image.epoch


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)
