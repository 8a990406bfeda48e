"""Identity of an archive: the replica's folder stores it, and never belongs to another replica."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import msgspec

from stele.log.archive.container import whole_file
from stele.runtime.settings import ConfigurationError

FILE: Final = "replica.json"


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """Identity of a replica.

    ``folder_id`` is drawn with the folder, so an emptied folder gets another id.
    """

    replica_id: str
    cluster: str
    folder_id: str


def identity_of(folder: Path, instance_id: str, cluster: str) -> ReplicaIdentity:
    """Read the identity from the folder, or create it.

    Raises ConfigurationError when the folder is another cluster's or its identity cannot be read.
    """
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
    """Check the cluster of the archived epochs.

    A restored or copied folder may have a new identity.

    Raises ConfigurationError when it is another cluster.
    """
    if archived not in ("", cluster):
        raise ConfigurationError(
            f"STELE_DATA_DIR holds epochs of cluster '{archived}', and not of '{cluster}': use another folder"
        )
