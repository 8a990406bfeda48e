"""Who a data folder belongs to, and how often it was started: one small file, written atomically."""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ConfigurationError

FILE: Final = "node.json"


class Identity(msgspec.Struct, frozen=True):
    """``boots`` counts starts; ``join_request_id`` is the id of the request to join until that is refused."""

    node_id: str
    cluster: str
    boots: int
    join_request_id: str

    def boot_id(self) -> str:
        """Greater at every start, as text (``domain.acks`` compares it)."""
        return f"{self.boots:012d}-{uuid.uuid4().hex}"


def boot(folder: Path, node_id: str, cluster: str) -> Identity:
    """Count one more start of this folder's node. Raises ConfigurationError when it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    known = _read(folder / FILE) or Identity(node_id, cluster, 0, new_request_id())
    if (known.node_id, known.cluster) != (node_id, cluster):
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder} holds the data of node '{known.node_id}' of cluster"
            f" '{known.cluster}', not of '{node_id}' of '{cluster}': use another folder"
        )
    booted = msgspec.structs.replace(known, boots=known.boots + 1)
    _write(folder / FILE, booted)
    return booted


def join_again(folder: Path, identity: Identity) -> None:
    """The next start asks to join under an id of its own, since the one so far stays refused."""
    changed = msgspec.structs.replace(identity, join_request_id=new_request_id())
    _write(folder / FILE, changed)


def _read(path: Path) -> Identity | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"STELE_DATA_DIR: {path} is damaged ({error}); give the node an empty folder and a new id"
        ) from error


def _write(path: Path, identity: Identity) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(identity))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
