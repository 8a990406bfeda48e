"""Restart of a replica whose snapshots differ from the members'.

It starts again with an empty archive. It first records the divergence in the log. Then the process
ends. At the next start its files are set aside for inspection, and files that were set aside
earlier are deleted.
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
from stele.domain.image import Image
from stele.domain.rules.archive import has_admitted_divergence, to_admit
from stele.log.archive.archive import SEGMENTS, SNAPSHOTS
from stele.log.archive.container import sync_folder, whole_file
from stele.runtime.logs import get_logger

LOOK_S: Final = 0.5
MARK: Final = "diverged.json"
ASIDE: Final = "diverged-"

log = get_logger(__name__)


class DivergenceMark(msgspec.Struct, frozen=True):
    """Marks the folder with this id as invalid: its snapshot of ``epoch`` differs from the
    members'.
    """

    folder_id: str
    epoch: int


def why_not_served(image: Image, identity: ReplicaIdentity) -> str:
    """Return why the replica must not serve its archive; empty when it may."""
    replica_id = identity.replica_id
    if to_admit(image, replica_id) or has_admitted_divergence(
        image.archive, replica_id, identity.folder_id
    ):
        return "its snapshots are not what a majority of the members has"
    return ""


async def restart_after_divergence(
    folder: Path, identity: ReplicaIdentity, image: Callable[[], Image], end: Callable[[], None]
) -> None:
    """Wait until the log records that the folder is invalid, mark it, then call ``end``."""
    replica_id = identity.replica_id
    while not has_admitted_divergence(image().archive, replica_id, identity.folder_id):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    told = image().archive.diverged[replica_id]
    metrics.divergences.inc()
    await asyncio.to_thread(mark, folder, DivergenceMark(identity.folder_id, told.epoch))
    log.error(
        "this replica's snapshots differ from the members': it sets its files aside and starts again empty",
        epoch=told.epoch,
        times=told.times,
    )
    end()


def mark(folder: Path, what: DivergenceMark) -> None:
    """Write the mark into the folder. Raises OSError."""
    with whole_file(folder / MARK) as file:
        file.write(msgspec.json.encode(what))


def set_aside(folder: Path) -> Path | None:
    """Move the content of a marked folder aside and return its new place.

    Return None when there is no mark. A move that a crash interrupted is completed. Raises OSError,
    msgspec.DecodeError.
    """
    try:
        marked = msgspec.json.decode((folder / MARK).read_bytes(), type=DivergenceMark)
    # The mark is deleted last. Until then a crash makes the next start repeat the move.
    except FileNotFoundError:
        return None
    aside = folder / f"{ASIDE}{marked.folder_id}"
    for older in folder.glob(f"{ASIDE}*"):
        if older != aside:
            shutil.rmtree(older)
    aside.mkdir(exist_ok=True)
    for name in (SEGMENTS, SNAPSHOTS, CHECKED, FILE):  # moving the last changes the id
        if (folder / name).exists():
            (folder / name).replace(aside / name)
    sync_folder(folder)
    (folder / MARK).unlink()
    log.warning("the files of this replica are set aside: it starts again empty", where=str(aside))
    return aside
