"""Where the Delta tables lie: a folder of this machine, or an address of an object store."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

SCHEMES: Final = ("file", "s3", "s3a", "gs", "abfs", "abfss", "az", "adl")
FORMS: Final = "Write a path, file:///PATH, s3://BUCKET/PREFIX, gs://... or abfss://..."


class TableMissing(Exception):
    """There is no Delta table at the address, or not at that version."""


class Store:
    """Tables by their names below one address.

    Keys and endpoint of an object store come from the environment, as delta-rs has them: AWS_*, AZURE_*, ...
    """

    def __init__(self, address: Path | str) -> None:
        """Raises ValueError, whose text says how an address is written."""
        text = str(address)
        scheme, place, path, *_ = urlsplit(text)
        self.folder: Path | None = None
        """None for an object store."""
        if "://" not in text:
            self.folder = Path(text).resolve()
        elif scheme not in SCHEMES:
            raise ValueError(f"'{text}' is no place for tables. {FORMS}")
        elif scheme == "file":
            if place not in ("", "localhost"):
                raise ValueError(f"'{text}' names another machine. {FORMS}")
            self.folder = Path(path)
        elif not place:
            raise ValueError(f"'{text}' names no bucket. {FORMS}")
        self._root = str(self.folder or text).rstrip("/")

    def __str__(self) -> str:
        return self._root

    def uri(self, name: str) -> str:
        return f"{self._root}/{name}"

    def is_there(self, name: str) -> bool:
        """Raises DeltaError, OSError."""
        return DeltaTable.is_deltatable(self.uri(name))

    def table(self, name: str, version: int | None = None) -> DeltaTable:
        """The table as it is now, or at a version. Raises TableMissing."""
        uri = self.uri(name)
        try:
            return DeltaTable(uri, version=version)
        except (TableNotFoundError, DeltaError, OSError) as error:
            at = "newest" if version is None else version
            raise TableMissing(
                f"There is no Delta table at {uri}, version {at}: {error}"
            ) from error
