"""Blobs in a bucket of S3 or a compatible service. The AWS_* variables give keys and region.

Uploads send their SHA-256, which the server checks, and store it in the object's metadata. Large
uploads go in parts, and become visible when all parts are there. The library retries where that is
safe, and each call has a time limit. See docs/decisions/028-blobs-by-obstore.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Bucket

from stele.log.blobs.port import (
    Blob,
    BlobMissingError,
    Stat,
    StoreRefusedError,
    StoreUnavailableError,
    checked,
)

if TYPE_CHECKING:
    from obstore import Attributes
    from obstore.store import ClientConfig, S3Config

T = TypeVar("T")

SHA256: Final = "sha256"
CONNECT_S: Final = 3.0
RETRIES: Final = 3
RETRY_S: Final = 5.0
"""The library stops its retries after this time. The caller retries, and a process that ends does
not wait for longer."""
LEAST_BYTES_PER_S: Final = 1 << 20
"""Slowest upload, which extends the time limit of large ones."""
PART_BYTES: Final = 8 << 20
PARTS_AT_ONCE: Final = 4
_NO_KEYS: Final = ("/latest/api/token", "/latest/meta-data/iam")
"""Paths of AWS's metadata service, which the library asks for keys when none are configured."""


class S3Store:
    """The blobs of ``bucket`` below ``prefix``. ``endpoint`` is empty for AWS itself."""

    def __init__(self, bucket: str, prefix: str, endpoint: str, timeout_s: float) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        client: ClientConfig = {
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=min(CONNECT_S, timeout_s)),
            "allow_http": endpoint.startswith("http://"),
        }
        config: S3Config = {"checksum_algorithm": "SHA256"}
        if endpoint:
            config["endpoint"] = endpoint
        self._objects = Bucket(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options=client,
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=min(RETRY_S, timeout_s)),
                "backoff": {"max_backoff": timedelta(seconds=2)},
            },
        )

    @property
    def url(self) -> str:
        place = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        return f"{place} at {self._endpoint}" if self._endpoint else place

    async def put(self, name: str, content: bytes | Path, sha256: str) -> None:
        checked(name)
        attributes: Attributes = {SHA256: sha256}

        def put() -> None:
            obstore.put(
                self._objects,
                name,
                content,
                attributes=attributes,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

        await self._within(name, put, _size_bytes(content))

    async def put_new(self, name: str, content: bytes) -> bool:
        checked(name)

        def put() -> None:
            obstore.put(self._objects, name, content, mode="create")

        try:
            await self._within(name, put)
        except AlreadyExistsError:
            return False
        return True

    async def get(self, name: str) -> bytes:
        checked(name)
        return await self._within(name, lambda: bytes(obstore.get(self._objects, name).bytes()))

    async def get_range(self, name: str, begin: int, end: int) -> bytes:
        checked(name)
        if begin == end:  # S3 has no empty ranges
            return b""
        return await self._within(
            name, lambda: bytes(obstore.get_range(self._objects, name, start=begin, end=end))
        )

    async def stat(self, name: str) -> Stat:
        checked(name)
        answer = await self._within(
            name, lambda: obstore.get(self._objects, name, options={"head": True})
        )
        return Stat(answer.meta["size"], answer.attributes.get(SHA256, ""))

    async def list(self) -> Sequence[Blob]:
        found = list[Blob]()
        pages = obstore.list(self._objects, chunk_size=1000)
        while True:
            page = await self._within("", lambda: next(pages, None))
            if page is None:
                return sorted(found)
            found += (Blob(each["path"], each["size"]) for each in page)

    async def delete(self, name: str) -> None:
        checked(name)
        with suppress(BlobMissingError):
            await self._within(name, lambda: obstore.delete(self._objects, name))

    async def _within(self, name: str, call: Callable[[], T], size_bytes: int = 0) -> T:
        """Run a call in a thread with a time limit, and translate its errors.

        The library's coroutines are not used, because they can crash a process that exits. A thread
        of their runtime that has yet to release an object then finds no interpreter.
        """
        limit_s = self._timeout_s * 2 + size_bytes / LEAST_BYTES_PER_S
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.to_thread(call)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"{self.url} did not answer within {limit_s:g} s."
            ) from error
        except AlreadyExistsError:
            raise
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreRefusedError(
                f"{self.url} does not allow it: {_first_line(error)} Look at AWS_ACCESS_KEY_ID,"
                " AWS_SECRET_ACCESS_KEY, and what they may do with this bucket."
            ) from error
        except (FileNotFoundError, BaseError) as error:
            if "NoSuchBucket" in str(error):
                raise StoreRefusedError(
                    f"{self.url}: there is no such bucket. Make it, or look at AWS_REGION and the endpoint."
                ) from error
            if any(sign in str(error) for sign in _NO_KEYS):
                raise StoreRefusedError(
                    f"{self.url}: there are no keys. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; this"
                    " machine gives none by itself."
                ) from error
            if isinstance(error, FileNotFoundError):
                raise BlobMissingError(name, self.url) from error
            raise StoreUnavailableError(f"{self.url}: {_first_line(error)}") from error


def _size_bytes(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text, without the library's internal details."""
    return str(error).partition("\n")[0].strip()
