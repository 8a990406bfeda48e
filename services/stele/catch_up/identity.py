"""Whose an archive is: a replica's folder says so, and is no other replica's ever after."""

import uuid
from pathlib import Path
from typing import Final

import msgspec

from stele.log.archive.files import whole_file
from stele.runtime.settings import ConfigurationError

FILE: Final = "replica.json"


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """``folder_id`` is drawn when the folder is made: who comes back with an empty one has another."""

    replica_id: str
    cluster: str
    folder_id: str


def identity_of(folder: Path, instance_id: str, cluster: str) -> ReplicaIdentity:
    """Read from the folder, or made with it. Raises ConfigurationError when it is another cluster's."""
    path = folder / FILE
    try:
        known = msgspec.json.decode(path.read_bytes(), type=ReplicaIdentity)
    except FileNotFoundError:
        known = ReplicaIdentity(instance_id, cluster, uuid.uuid4().hex)
        with whole_file(path) as file:
            file.write(msgspec.json.encode(known))
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder}: {FILE} cannot be read ({error}): restore it, or take an empty folder"
        ) from error
    if known.cluster != cluster:
        raise ConfigurationError(
            f"STELE_DATA_DIR={folder} holds the archive of cluster '{known.cluster}', not of '{cluster}':"
            " use another folder"
        )
    return known


def check_cluster(archived: str, cluster: str) -> None:
    """What is archived says whose it is, also where the identity is new: a folder that was restored, or copied.

    Raises ConfigurationError.
    """
    if archived not in ("", cluster):
        raise ConfigurationError(
            f"STELE_DATA_DIR holds epochs of cluster '{archived}', and not of '{cluster}': use another folder"
        )
