"""A blob store by its URL."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stele.log.blobs.folder import FolderStore
from stele.log.blobs.port import NAME, BlobStore

TIMEOUT_S: Final = 30.0
FORMS: Final = "Write s3://BUCKET/PREFIX, file:///PATH or a path."


def open_store(url: str, endpoint: str = "", timeout_s: float = TIMEOUT_S) -> BlobStore:
    """``s3://bucket/prefix``, ``file:///path`` or a path; nothing is asked yet. ``endpoint`` is of S3 alone.

    Raises ValueError, whose text says how it is written.
    """
    scheme, place, path, *_ = urlsplit(url)
    if not scheme and url:
        return FolderStore(Path(url), timeout_s)
    if scheme == "file" and place in ("", "localhost") and path.startswith("/"):
        return FolderStore(Path(path), timeout_s)
    if scheme == "s3" and place:
        prefix = path.strip("/")
        if prefix and NAME.fullmatch(prefix) is None:
            raise ValueError(f"'{url}': a prefix has letters, digits and . _ - between slashes.")
        if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
            raise ValueError(f"'{endpoint}' is no endpoint. Write http(s)://HOST:PORT.")
        from stele.log.blobs.s3 import S3Store  # noqa: PLC0415  (15 MB that few processes need)

        return S3Store(place, prefix, endpoint, timeout_s)
    raise ValueError(f"'{url}' names no store. {FORMS}")
