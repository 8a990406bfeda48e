"""The identity of a data directory, its promises, and its protection against replacement (I6, I13).

``node.json`` records the identity. The store carries the same host id in its own table. A lock
keeps a second process out.

Each change of ``node.json`` is on the disk before any process acts on it. A new file is written and
synced, takes the old one's name, and the folder is synced. The old file stays as the room for the
next change, so that a node with a full disk can still acknowledge versions.
"""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.container import UNFINISHED, sync_file, sync_folder, whole_file
from stele.runtime.logs import get_logger
from stele.runtime.recent import Promised
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ConfigurationError

# A count of acks on the disk that is never behind the acks sent.
#
# An older copy of the directory lacks later acknowledgements. Its count is behind the topic of
# acks, which reveals it (``agent.older_copy``).
#
# The file is overwritten in place, which works on a full disk. Writes alternate between two slots,
# so that the other slot stays intact if a write fails. The reasons are in
# docs/decisions/076-heartbeats-are-counted-on-the-disk.md.


HEARTBEATS_FILE: Final = "heartbeats"
SLOT_BYTES: Final = 4096
"""Bytes of a slot. Each slot has its own sector, so a write touches no other slot."""
AHEAD: Final = 32
"""Step of the count on the disk: the number of acks that an idle node sends in sixteen seconds."""
MOST_AHEAD: Final = 256
OFTEN_S: Final = 4.0
"""Interval in seconds.

If the count is raised again within it, the step doubles, since a disk may be slow.
"""
_DAMAGED: Final = -1

log = get_logger(__name__)


class Heartbeats:
    """The count of one directory. ``counted`` is the greatest ``sequence`` that an ack may have.

    The methods may be called from any thread, by one thread at a time.
    """

    def __init__(self, path: Path, numbers: tuple[int, int]) -> None:
        self._path = path
        self._newest = numbers.index(max(numbers))
        """The slot with the newest count, which the next write must not touch."""
        self.counted = max(numbers)
        self._step = AHEAD
        self._raised_s = float("-inf")

    def is_short(self, sequence: int) -> bool:
        """Return whether the count must be raised soon when ``sequence`` acks were sent."""
        return self.counted - sequence < self._step // 2

    def get_ahead_of(self, sequence: int) -> None:
        """Raise the count above ``sequence``, by a larger step if that happens often.

        Returns after the sync. Raises OSError.
        """
        now_s = time.monotonic()
        often = now_s - self._raised_s < OFTEN_S
        self._step, self._raised_s = min(2 * self._step, MOST_AHEAD) if often else AHEAD, now_s
        self.raise_to(sequence + self._step)

    def raise_to(self, number: int) -> None:
        """Raise the count to ``number``. Returns after the sync. Raises OSError."""
        if number > self.counted:
            slot = 1 - self._newest
            with self._path.open("r+b") as file:
                file.seek(slot * SLOT_BYTES)
                file.write(_slot(number))
                sync_file(file)
            # After the sync only: acks up to this number may be sent from now on.
            self._newest, self.counted = slot, number


def begun(folder: Path) -> Heartbeats:
    """Create the count of a new directory, at 0. Raises OSError."""
    path = folder / HEARTBEATS_FILE
    with whole_file(path) as file:
        file.write(2 * _slot(0))
    return Heartbeats(path, (0, 0))


def read(folder: Path) -> Heartbeats:
    """Read the count of an existing directory. Raises OSError.

    Every directory with a host id has the file. A missing or damaged file counts as 0, so that only
    an operator lets the node continue.
    """
    path = folder / HEARTBEATS_FILE
    try:
        with path.open("r+b") as file:
            data = file.read()
            sync_file(file)  # a killed process may have written this without a sync
    except FileNotFoundError:
        data = b""
    one, other = _number(data[:SLOT_BYTES]), _number(data[SLOT_BYTES:])
    if one == other == _DAMAGED:
        log.error(
            "the count of heartbeats is missing or damaged, and restarts at zero", file=str(path)
        )
        return begun(folder)
    return Heartbeats(path, (one, other))


def _slot(number: int) -> bytes:
    text = b"%020d" % number
    return (b"%s %08x\n" % (text, zlib.crc32(text))).ljust(SLOT_BYTES)


def _number(slot: bytes) -> int:
    text, _, check = slot.strip().partition(b" ")
    return int(text) if text.isdigit() and check == b"%08x" % zlib.crc32(text) else _DAMAGED


FILE: Final = "node.json"
SPARE: Final = "node.json.spare"
"""The file of the last content but one, into which the next content is written."""
FILE_BYTES: Final = 4096
"""Smallest size of both files. A disk gives whole blocks, so the next content needs no new one."""
STORE_FILE: Final = "store.sqlite"
COUNTED: Final = "-c"

replace = msgspec.structs.replace


class Acknowledged(msgspec.Struct, frozen=True):
    """The newest acknowledged topology version and fence, and the epoch of that ack."""

    epoch: int = 0
    state_id: str = ""
    version: int = 0
    fence_version: int = 0


class AcceptedLoss(msgspec.Struct, frozen=True):
    """A loss that an operator accepted: log ``as_log_id`` lacks an epoch of ``log_id``.

    ``as_log_id`` is the recovery of ``log_id``. The node had acknowledged ``epoch``, which it
    lacks. Epochs up to ``kept_epoch`` are not lost; 0 means not known.
    """

    log_id: str
    epoch: int
    kept_epoch: int
    as_log_id: str


class AcceptedCopy(msgspec.Struct, frozen=True):
    """An older copy of a directory that an operator accepted.

    ``counted`` is the heartbeat count of the copy, ``told`` the count that the cluster had
    received.
    """

    counted: int
    told: int


class Identity(msgspec.Struct, frozen=True):
    """The content of ``node.json``. ``host_id`` is created with the directory and never changes.

    - ``cluster_id``, ``log_id`` and ``admitted_by`` (the request to join) are empty until the
      cluster admits the node.
    - ``has_store`` is true once the store exists. From then on the store must not be missing.
    - ``boots`` counts starts.
    - ``join_request_id`` is the id of the request to join, until that request is refused.
    - ``was_member`` is true once the node was normal.
    - ``enabled_features`` are those that the log had enabled when it was last read. A build that
      lacks one does not start.
    - ``accepted_losses`` belong to recoveries, the newest last.
    - ``accepted_copies`` belong to directories that were put back.
    - ``unknown_data`` are ids of data that the store had when a loss was accepted, and the log had
      not. Its creation was lost, or it was dropped and not deleted yet. The node keeps its rows.
    """

    node_id: str
    cluster: str
    host_id: str
    boots: int
    join_request_id: str
    cluster_id: str = ""
    log_id: str = ""
    admitted_by: str = ""
    has_store: bool = False
    was_member: bool = False
    enabled_features: tuple[str, ...] = ()
    acknowledged: Acknowledged = Acknowledged()
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    accepted_copies: tuple[AcceptedCopy, ...] = ()
    unknown_data: tuple[str, ...] = ()

    def boot_id(self, life: str) -> str:
        """Return an id that, as text, is greater at every start (``domain.topology.barriers`` compares it).

        ``life`` is new for each start. The suffix marks acks that are counted over all starts,
        unlike those of earlier builds.
        """
        return f"{self.boots:012d}-{life}{COUNTED}"


class DataDirectory:
    """A node's folder and its identity. ``save`` may be called from any thread.

    Raises OSError, ConfigurationError.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        store_file: str = STORE_FILE,
    ) -> None:
        self.folder = folder
        self.is_new = identity.boots == 0
        """True at the first start: no other process can have received an ack of this directory."""
        self.heartbeats = begun(folder) if self.is_new else read(folder)
        self.store_path = folder / store_file
        self.identity = identity
        self.data_ids: Callable[[], Iterable[str]] = tuple
        """Returns the ids of the data in the store. ``bind`` sets it."""
        self._saving = threading.Lock()

    def promised(self) -> Promised | None:
        """Return the promise that barriers may have counted; None before the first ack."""
        identity, told = self.identity, self.identity.acknowledged
        return Promised(identity.log_id, told.epoch, told.state_id) if told.epoch else None

    def save(self, **changes: object) -> None:
        """Change fields of the identity. Returns after the sync. Raises OSError."""
        with self._saving:
            changed = replace(self.identity, **changes)
            if changed != self.identity:
                _write(self.folder / FILE, changed)
                # Disk first: a reader of ``identity`` must never see a promise that a crash could
                # undo.
                self.identity = changed

    def join_again(self, horizon_ms: int = -1) -> None:
        """Use another id for the next request to join, since the current one stays refused.

        The new id is newer than ``horizon_ms``. Raises OSError.
        """
        self.save(join_request_id=new_request_id(horizon_ms=horizon_ms))


def boot(
    folder: Path,
    node_id: str,
    cluster: str,
    store_file: str = STORE_FILE,
    supported: Set[str] = KNOWN_FEATURES,
) -> DataDirectory:
    """Count one more start of the node in this folder, and return its directory.

    ``store_file`` is the name of the store's data in the folder. It never exists there without
    ``node.json``.

    Raises ConfigurationError when the folder is another node's, or when the cluster has enabled
    features that are not ``supported``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = _read(folder / FILE)
    if known is None:
        _check_no_store(folder, store_file)
        known = Identity(node_id, cluster, str(uuid.uuid4()), 0, new_request_id())
    if (known.node_id, known.cluster) != (node_id, cluster):
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder} holds the data of node '{known.node_id}' of cluster"
            f" '{known.cluster}', not of '{node_id}' of '{cluster}': use another folder"
        )
    _check_features(folder, known, supported)
    directory = DataDirectory(folder, known, store_file)
    directory.save(boots=known.boots + 1)
    return directory


def _check_features(folder: Path, known: Identity, supported: Set[str]) -> None:
    """Check the enabled features before the log is read: the data may depend on them.

    Source: ScyllaDB, pull request #15196, "Cluster features on raft". Raises ConfigurationError.
    """
    lacking = sorted({*known.enabled_features} - supported)
    if lacking:
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder}: the cluster has enabled {', '.join(lacking)}, which this build lacks,"
            " and there is no way back: start node"
            f" '{known.node_id}' with a newer release (missing_features)"
        )


def _check_no_store(folder: Path, store_file: str) -> None:
    """Check that there is no store without a ``node.json``. Its owner would be unknown."""
    store = folder / store_file
    if store.exists():
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder} holds {store_file} without {FILE}: put back the {FILE} that"
            " belongs to it, or give the node an empty folder and a new name, and remove or replace the old one"
        )


def _read(path: Path) -> Identity | None:
    """Return the identity in ``node.json``, or None for a new directory.

    Raises ConfigurationError.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"STELE_DATA_DIR: {path} is damaged ({error}): give the"
            " node an empty folder and a new name, and remove or replace the old one"
        ) from error


def _write(path: Path, identity: Identity) -> None:
    spare, kept = path.with_name(SPARE), path.with_name(SPARE + UNFINISHED)
    with spare.open("r+b" if spare.exists() else "w+b") as file:
        file.write(msgspec.json.encode(identity).ljust(FILE_BYTES))
        file.truncate()
        sync_file(file)
    with suppress(OSError):  # the first content, or a file system without hard links: no spare
        kept.unlink(missing_ok=True)
        kept.hardlink_to(path)
    spare.replace(path)
    # Sync before the old file becomes the spare: after a power failure one file must not have both
    # names, since the spare is overwritten in place.
    sync_folder(path.parent)
    with suppress(FileNotFoundError):
        kept.replace(spare)


# Binding of stored data to the host id that it carries.
#
# Swapped, emptied and lost data is detected (I13).


WHAT_TO_DO: Final = (
    "this is not the replica that the cluster knows: put its own data directory back (an older copy of it lacks"
    " what was acknowledged since), or give the node an empty folder and a new name, and remove or replace the"
    " old one"
)


def bind(
    directory: DataDirectory,
    host_id_in: Callable[[Path], str],
    make: Callable[[Path, str], None],
    data_ids_in: Callable[[Path], Iterable[str]],
) -> Path:
    """Return the path of the directory's data, which the first start creates.

    Raises ConfigurationError.

    ``host_id_in`` reads the host id that the data carries, empty if it carries none. ``make``
    creates data with a host id, and syncs it. ``data_ids_in`` reads the ids of the tables and
    keyspaces that have rows there.

    The next start repairs a crash at any moment of the first start. The data gets its host id when
    it is created, and node.json records the data only after that.
    """
    path, identity = directory.store_path, directory.identity
    directory.data_ids = partial(data_ids_in, path)
    # From here on missing data is an error: an empty store would serve without acknowledged writes.
    if identity.has_store:
        if not path.exists():
            raise ConfigurationError(f"{path} is missing; {WHAT_TO_DO}")
        _check(path, host_id_in(path), identity.host_id)
        return path
    found = host_id_in(path) if path.exists() else ""
    if found:
        _check(path, found, identity.host_id)
    else:
        make(path, identity.host_id)
    # Only after the data has its host id on the disk: a crash before this line repeats the first
    # start.
    directory.save(has_store=True)
    return path


def _check(path: Path, found: str, host_id: str) -> None:
    if found != host_id:
        belongs = f"belongs to host {found}" if found else "is empty or belongs to no host"
        raise ConfigurationError(f"{path} {belongs}, node.json to host {host_id}; {WHAT_TO_DO}")
