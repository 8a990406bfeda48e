"""``stele backup``, ``backup verify`` and ``restore``: the log's archive in a folder or bucket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import structlog
from cyclopts import App, Parameter

from stele.cli.errors import CliError, Exit, UnreachableError, UsageError
from stele.cli.notice import ProgressLine
from stele.cli.options import Json, TypedDirectory
from stele.cli.output import console, counted, duration, print_line, print_value_as_json, size
from stele.cli.places import told_or_of_stack
from stele.log.archive.container import DamagedFileError, NotArchivedError, gaps
from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.archive_store.backup import (
    BackedUp,
    NotEmptyError,
    NothingToRestoreError,
    Restored,
    back_up,
    verify_stored,
)
from stele.log.archive_store.backup import restore as restore_into
from stele.log.archive_store.verify import ArchiveVerdict
from stele.log.blobs.folder import open_store
from stele.log.blobs.port import BlobStore, BlobStoreError, StoreUnavailableError
from stele.log.errors import LogError
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable, DifferentLogsError, replica_source

T = TypeVar("T")

URLS: Final = "STELE_CATCH_UP_URLS"
METADATA_ALONE: Final = (
    "It is the metadata; rows are the nodes' data: see `stele table snapshot --help`."
)
GUESSES: Final = {
    **dict.fromkeys(("create", "make", "new", "run", "start"), "stele backup TARGET"),
    **dict.fromkeys(("check", "list", "show", "status"), "stele backup verify TARGET"),
    "restore": "stele restore TARGET --into FOLDER",
}
"""Words that are meant as a command and not as a folder, with the right command line."""

Endpoint = Annotated[
    str, Parameter(name="--endpoint", env_var="STELE_ARCHIVE_STORE_ENDPOINT", negative="")
]

app = App(name="backup")


@app.default
def backup(
    target: str,
    /,
    *,
    catch_up: Annotated[tuple[str, ...], Parameter(name="--catch-up", negative="")] = (),
    check: Annotated[bool, Parameter(name="--check", negative="")] = False,
    endpoint: Endpoint = "",
    directory: TypedDirectory = None,
    json: Json = Json(),
) -> int:
    """Copy the metadata from the catch-up replicas into a backup: the newest snapshot and all epochs.

    Files that the backup has already are not copied again. A backup holds no rows of tables. Exit status 1
    when the replicas lack epochs.

    Args:
        target: DIR, file:///DIR or s3://BUCKET/PREFIX. S3 keys come from the usual AWS_* variables.
        catch_up: Address of a catch-up replica; may be repeated. Default: that of --dir, else
            STELE_CATCH_UP_URLS, else that of the stack in STELE_DIR or .stele.
        check: Read the existing files first, and replace damaged ones.
        endpoint: Server of the S3 protocol, if it is not AWS.
        directory: Directory of a local stack.
    """
    if target in GUESSES:
        raise UsageError(
            f"`stele backup` has no command '{target}'.",
            f"Write `{GUESSES[target]}`; a folder of this name is ./{target}.",
        )
    urls = catch_up or known_urls(directory)
    began_s = time.perf_counter()
    done = run_work(_back_up(_store(target, endpoint), urls, check=check), "copying the metadata")
    manifest, progress = done.manifest, done.progress
    missing = [
        f"Epochs {first} to {last} are missing on the replicas." for first, last in gaps(done.spans)
    ]
    flaws = (*missing, *progress.skipped)
    if json.as_json:
        print_value_as_json(_summary(done, flaws))
        return Exit.FAILED if flaws else Exit.OK
    all_bytes = sum(entry.size_bytes for entry in manifest.files)
    print_line(
        f"cluster {manifest.cluster}, epochs {manifest.first_epoch} to {manifest.last_epoch},"
        f" {_newest(manifest.snapshot_epochs)}"
    )
    print_line(
        f"{counted(progress.put_blobs, 'file', 'files')} put, {size(progress.put_bytes)}, in"
        f" {duration(time.perf_counter() - began_s)}; it has {len(manifest.files)}, {size(all_bytes)}"
    )
    for flaw in flaws:
        print_line(flaw)
    print_line(METADATA_ALONE)
    return Exit.FAILED if flaws else Exit.OK


@app.command
def verify(
    target: str,
    /,
    *,
    endpoint: Endpoint = "",
    json: Json = Json(),
) -> int:
    """Read a whole backup, or the mirror of catch-up, and check bytes, chain of states and snapshots.

    Every epoch must follow from the one before it. The epochs after a snapshot must lead to the state of the
    next one. Exit status 1 when something is wrong.

    Args:
        target: DIR, file:///DIR or s3://BUCKET/PREFIX.
        endpoint: Server of the S3 protocol, if it is not AWS.
    """
    began_s = time.perf_counter()
    verdict = run_work(verify_stored(_store(target, endpoint)), "checking the backup")
    if json.as_json:
        print_value_as_json(verdict)
    else:
        _show(verdict, time.perf_counter() - began_s)
    return Exit.FAILED if verdict.flaws else Exit.OK


def restore(
    target: str,
    /,
    *,
    into: Annotated[Path, Parameter(name="--into")],
    endpoint: Endpoint = "",
    json: Json = Json(),
) -> None:
    """Create the data folder of a catch-up replica from a backup, or from the mirror of catch-up.

    Everything that is read is checked. Start catch-up with the folder as STELE_DATA_DIR. It holds metadata
    only: it changes neither the topic nor the data of nodes.

    Args:
        target: DIR, file:///DIR or s3://BUCKET/PREFIX.
        into: The folder to create; it must be missing or empty.
        endpoint: Server of the S3 protocol, if it is not AWS.
    """
    began_s = time.perf_counter()
    restored = run_work(restore_into(_store(target, endpoint), into), "restoring the backup")
    if json.as_json:
        print_value_as_json(restored)
        return
    _show_restored(restored, into, time.perf_counter() - began_s)


async def _back_up(store: BlobStore, urls: tuple[str, ...], *, check: bool) -> BackedUp:
    catch_up = CatchUp(urls)
    try:
        source = await replica_source(catch_up)
        return await back_up(
            store,
            source,
            made_ms=int(time.time() * 1000),
            made_from=", ".join(source.urls),
            check=check,
        )
    finally:
        await catch_up.close()


def _show(verdict: ArchiveVerdict, took_s: float) -> None:
    out = console()
    print_line(
        f"epochs {verdict.first_epoch} to {verdict.last_epoch}, {verdict.folded_epochs} of them folded;"
        f" {counted(len(verdict.snapshots), 'snapshot', 'snapshots')} compared",
        out,
    )
    print_line(
        f"{counted(verdict.blobs, 'file', 'files')} read, {size(verdict.size_bytes)}, in {duration(took_s)}",
        out,
    )
    if verdict.state_hash:
        print_line(f"state {verdict.state_id}, hash {verdict.state_hash}", out)
    for flaw in verdict.flaws:
        print_line(flaw, out)
    if verdict.damaged:
        print_line("`stele backup TARGET --check` replaces the damaged files.", out)
    out.print("nothing is wrong" if not verdict.flaws else f"wrong: {len(verdict.flaws)}")


def _show_restored(restored: Restored, into: Path, took_s: float) -> None:
    print_line(
        f"cluster {restored.cluster}, log {restored.log_id}, epochs {restored.first_epoch} to"
        f" {restored.last_epoch}, {_newest(restored.snapshots)}"
    )
    print_line(f"in {into} after {duration(took_s)}")
    print_line(METADATA_ALONE)


def _newest(snapshots: tuple[int, ...]) -> str:
    return f"newest snapshot of epoch {snapshots[-1]}" if snapshots else "no snapshot yet"


def _summary(done: BackedUp, flaws: tuple[str, ...]) -> dict[str, object]:
    manifest, progress = done.manifest, done.progress
    return {
        "cluster": manifest.cluster,
        "cluster_id": manifest.cluster_id,
        "log_id": manifest.log_id,
        "first_epoch": manifest.first_epoch,
        "last_epoch": manifest.last_epoch,
        "state_id": manifest.state_id,
        "snapshots": manifest.snapshot_epochs,
        "files": len(manifest.files),
        "size_bytes": sum(entry.size_bytes for entry in manifest.files),
        "put_files": progress.put_blobs,
        "put_bytes": progress.put_bytes,
        "flaws": flaws,
    }


def known_urls(typed: Path | None) -> tuple[str, ...]:
    """Return the addresses of catch-up: of the given stack, the environment, or the default stack.

    Raises UsageError.
    """
    told = told_or_of_stack(URLS, typed)
    urls = tuple(url.strip() for url in told.split(",") if url.strip())
    if not urls:
        raise UsageError(
            "No address of catch-up is known.",
            f"Give --catch-up http://HOST:PORT, or set {URLS}; it is catch-up that keeps all epochs.",
        )
    return urls


def _store(target: str, endpoint: str) -> BlobStore:
    try:
        return open_store(target, endpoint)
    except ValueError as error:
        raise UsageError(str(error)) from error


def run_work(work: Coroutine[Any, Any, T], what: str = "") -> T:
    """Run work and return its result. Errors of archives and stores become a CliError.

    ``what`` is shown as progress; empty: the work shows its own.
    """
    if not structlog.is_configured():  # else it prints whatever a library of ours notes
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with _as_cli_errors(), ProgressLine().running(what) if what else nullcontext():
        return asyncio.run(work)


@contextmanager
def _as_cli_errors() -> Iterator[None]:
    try:
        yield
    except CatchUpUnavailable as error:
        raise UnreachableError(str(error), "Is catch-up running? `stele stack status`.") from error
    except StoreUnavailableError as error:
        raise UnreachableError(str(error), "Try again: files that were copied are kept.") from error
    except NotEmptyError as error:
        raise UsageError(f"{error}.", "Name a folder that does not exist.") from error
    except NothingToRestoreError as error:
        raise CliError(
            str(error), "Ask for a snapshot, or wait until the replicas have filled up."
        ) from error
    except UnreadableSnapshotError as error:
        raise CliError(str(error)) from error
    except (DamagedFileError, NotArchivedError, LogError) as error:
        raise CliError(
            f"{error}.".replace("..", "."), "`stele backup verify` lists all errors."
        ) from error
    except (BlobStoreError, DifferentLogsError) as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error}.") from error
