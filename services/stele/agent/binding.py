"""Data belongs to the host whose id it carries: one that was swapped, emptied or lost is noticed (I13)."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from stele.agent.identity import DataDirectory
from stele.runtime.settings import ConfigurationError

WHAT_TO_DO: Final = (
    "this is not the replica that the cluster knows: put its own data directory back (an older copy of it lacks"
    " what was acknowledged since), or give the node an empty folder and a new name, and remove or replace the"
    " old one"
)


def bind(
    directory: DataDirectory,
    host_id_in: Callable[[Path], str],
    make: Callable[[Path, str], None],
) -> Path:
    """The directory's data, made at the first start. Raises ConfigurationError.

    ``host_id_in`` reads the id that the data carries, empty when it carries none; ``make`` makes data that
    carries one, and syncs it. A crash at any moment of the first start is mended by the next one: the data gets
    its id when it is made, and node.json says that there is data only after that.
    """
    path, identity = directory.store_path, directory.identity
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
    directory.save(has_store=True)
    return path


def _check(path: Path, found: str, host_id: str) -> None:
    if found != host_id:
        belongs = f"belongs to host {found}" if found else "is empty or belongs to no host"
        raise ConfigurationError(f"{path} {belongs}, node.json to host {host_id}; {WHAT_TO_DO}")
