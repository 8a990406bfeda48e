"""Whose a data directory is, what it has acknowledged, and that no other takes its place (I6, I13).

``node.json`` says it, the store carries the same host id in a table of its own, and a lock keeps a
second process out. Each change of ``node.json`` is on the disk before anybody acts on it: a new file is
written and synced, takes the old one's name, and the folder is synced.
"""

import threading
import uuid
from collections.abc import Set
from pathlib import Path
from typing import Final

import msgspec

from stele.agent.heartbeats import begun, read
from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.files import whole_file
from stele.runtime.recent import Promised
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ConfigurationError

FILE: Final = "node.json"
STORE_FILE: Final = "store.sqlite"
COUNTED: Final = "-c"

replace = msgspec.structs.replace


class Acknowledged(msgspec.Struct, frozen=True):
    """The newest topology version and fence that acks of this node told, and the epoch they were told at."""

    epoch: int = 0
    state_id: str = ""
    version: int = 0
    fence_version: int = 0


class AcceptedLoss(msgspec.Struct, frozen=True):
    """An operator let the node go on though log ``log_id`` was recovered as ``as_log_id`` without ``epoch``,
    which the node had acknowledged. ``kept_epoch`` and those before it are not lost; 0: not known.
    """

    log_id: str
    epoch: int
    kept_epoch: int
    as_log_id: str


class AcceptedCopy(msgspec.Struct, frozen=True):
    """An operator let the node go on with an older copy of its directory: one that had counted so many
    heartbeats, when the cluster had heard ``told``.
    """

    counted: int
    told: int


class Identity(msgspec.Struct, frozen=True):
    """What ``node.json`` holds. ``host_id`` was made with the directory and names it for ever.

    ``cluster_id``, ``log_id`` and ``admitted_by`` (the request to join) are empty until the cluster has
    admitted the node. ``has_store`` is true once the store exists: from then on it may not be missing.
    ``boots`` counts starts; ``join_request_id`` is the id of the request to join until that is refused.
    ``was_member`` is true once the node was normal. ``enabled_features`` are those that the log had enabled
    when it was read last: a build that lacks one does not start. ``accepted_losses`` are of recoveries, the
    newest last, ``accepted_copies`` of directories that were put back.
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

    def boot_id(self, life: str) -> str:
        """Greater at every start, as text (``domain.acks`` compares it). ``life`` is new each time. The end
        says that acks are counted over all starts, which earlier builds did not do.
        """
        return f"{self.boots:012d}-{life}{COUNTED}"


class DataDirectory:
    """A node's folder and what is known of it. ``save`` may be called from any thread. Raises OSError,
    ConfigurationError.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        store_file: str = STORE_FILE,
    ) -> None:
        self.folder = folder
        self.is_new = identity.boots == 0
        """It is made just now: nobody has ever heard of it."""
        self.heartbeats = begun(folder) if self.is_new else read(folder)
        self.store_path = folder / store_file
        self.identity = identity
        self._saving = threading.Lock()

    def promised(self) -> Promised | None:
        """What barriers may have counted on; None before the first ack."""
        identity, told = self.identity, self.identity.acknowledged
        return Promised(identity.log_id, told.epoch, told.state_id) if told.epoch else None

    def save(self, **changes: object) -> None:
        """Change fields of the identity; returns once the change is synced. Raises OSError."""
        with self._saving:
            changed = replace(self.identity, **changes)
            if changed != self.identity:
                _write(self.folder / FILE, changed)
                self.identity = changed

    def join_again(self, horizon_ms: int = -1) -> None:
        """It asks to join under another id from now on, since the one so far stays refused. That one is newer
        than ``horizon_ms``.
        """
        self.save(join_request_id=new_request_id(horizon_ms=horizon_ms))


def boot(
    folder: Path,
    node_id: str,
    cluster: str,
    store_file: str = STORE_FILE,
    supported: Set[str] = KNOWN_FEATURES,
) -> DataDirectory:
    """Count one more start of this folder's node. Raises ConfigurationError when it is another's, or needs
    features that are not ``supported``.

    ``store_file`` is where the store keeps its data in the folder; it is never there without ``node.json``.
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
    """What the cluster has enabled is needed before its log is read: data may be kept by it (seed 004)."""
    lacking = sorted({*known.enabled_features} - supported)
    if lacking:
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder}: the cluster has enabled {', '.join(lacking)}, which this build lacks,"
            " and there is no way back: start node"
            f" '{known.node_id}' with a newer release (missing_features)"
        )


def _check_no_store(folder: Path, store_file: str) -> None:
    """Data without a name is of nobody knows which node."""
    store = folder / store_file
    if store.exists():
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder} holds {store_file} without {FILE}: put back the {FILE} that"
            " belongs to it, or give the node an empty folder and a new name, and remove or replace the old one"
        )


def _read(path: Path) -> Identity | None:
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
    with whole_file(path) as file:
        file.write(msgspec.json.encode(identity))
