"""A replica whose snapshots are not the members' begins anew, as one whose disk was emptied.

It says so in the log first. Then it ends, and at its next start what it had is set aside, for whoever wants to
look into it: what was set aside before that goes.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from stele.catch_up import metrics
from stele.catch_up.checking import FILE as CHECKED
from stele.catch_up.identity import FILE, ReplicaIdentity
from stele.domain.archive.divergence import is_told, to_admit
from stele.domain.image import Image
from stele.log.archive.archive import SEGMENTS, SNAPSHOTS
from stele.log.archive.files import sync_folder, whole_file
from stele.runtime.logs import get_logger

LOOK_S: Final = 0.5
MARK: Final = "diverged.json"
ASIDE: Final = "diverged-"

log = get_logger(__name__)


class Mark(msgspec.Struct, frozen=True):
    """The folder of this id counts for nothing: its snapshot of ``epoch`` is not the members'."""

    folder_id: str
    epoch: int


def why_not_served(image: Image, identity: ReplicaIdentity) -> str:
    """Why nobody is to be given what this replica has; empty when it may be."""
    replica_id = identity.replica_id
    if to_admit(image, replica_id) or is_told(image.archive, replica_id, identity.folder_id):
        return "its snapshots are not what a majority of the members has"
    return ""


async def begin_anew(
    folder: Path, identity: ReplicaIdentity, image: Callable[[], Image], end: Callable[[], None]
) -> None:
    """Wait until the log says that what is in the folder counts for nothing; mark it, then ``end`` it all."""
    replica_id = identity.replica_id
    while not is_told(image().archive, replica_id, identity.folder_id):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    told = image().archive.diverged[replica_id]
    metrics.divergences.inc()
    await asyncio.to_thread(mark, folder, Mark(identity.folder_id, told.epoch))
    log.error(
        "the snapshots of this replica are not the members': it ends, sets aside what it has, and begins anew",
        epoch=told.epoch,
        times=told.times,
    )
    end()


def mark(folder: Path, what: Mark) -> None:
    """Raises OSError."""
    with whole_file(folder / MARK) as file:
        file.write(msgspec.json.encode(what))


def set_aside(folder: Path) -> Path | None:
    """Where what was in a marked folder is now; None when it is not marked. What a crash left is ended.

    Raises OSError, msgspec.DecodeError.
    """
    try:
        marked = msgspec.json.decode((folder / MARK).read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    aside = folder / f"{ASIDE}{marked.folder_id}"
    for older in folder.glob(f"{ASIDE}*"):
        if older != aside:
            shutil.rmtree(older)
    aside.mkdir(exist_ok=True)
    for name in (SEGMENTS, SNAPSHOTS, CHECKED, FILE):  # the last one makes it another folder
        if (folder / name).exists():
            (folder / name).replace(aside / name)
    sync_folder(folder)
    (folder / MARK).unlink()
    log.warning("what this replica had is set aside: it begins anew", where=str(aside))
    return aside
