"""Asking the services, each call with a time limit: who does not answer is named, not waited for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import aiohttp

from stele.runtime.http_tls import certificate_refused

CONNECT_S: Final = 1.0
ANSWER_S: Final = 10.0
DUMP_S: Final = 120.0
"""A state with a million tablets takes a while."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Of the answer of one process that is asked how it is: its address stands in the log, and is anybody's."""
PIECE_BYTES: Final = 1 << 16
LATER: Final = frozenset({502, 503, 504})
"""Another instance may know better."""


class AwayError(Exception):
    """No instance of a service answers."""

    def __init__(self, service: str, why: str) -> None:
        super().__init__(f"{service} does not answer: {why}")
        self.service = service
        self.why = why


class Answered(NamedTuple):
    """What a service has answered, whether it liked the question or not."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Upstream:
    """One client for all; it begins with the instance that answered last."""

    def __init__(
        self, http: aiohttp.ClientSession, services: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.http = http
        self.services = services
        self._first = dict.fromkeys(services, 0)

    async def ask(
        self,
        service: str,
        path: str,
        params: Mapping[str, object] | None = None,
        *,
        body: bytes | None = None,
        authorization: str = "",
        limit_s: float = ANSWER_S,
    ) -> Answered:
        """The first answer of any instance; with a ``body`` it is a POST. Raises AwayError."""
        credentials = {"authorization": authorization} if authorization else {}
        urls, why = self.services.get(service, ()), "its address is not set"
        given = {name: str(value) for name, value in (params or {}).items()}
        last: Answered | None = None
        for turn in range(len(urls)):
            at = (self._first[service] + turn) % len(urls)
            try:
                last = await self._one(urls[at] + path, given, body, limit_s, more=credentials)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                why = f"{urls[at]}: {plain(error, limit_s)}"
                continue
            if last.status not in LATER:
                self._first[service] = at
                return last
        if last is not None:
            return last
        raise AwayError(service, why)

    async def one(self, url: str, limit_s: float) -> Answered:
        """The answer of one address. Raises AwayError."""
        try:
            return await self._one(url, {}, None, limit_s, MOST_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise AwayError(url, plain(error, limit_s)) from error

    async def _one(
        self,
        url: str,
        params: Mapping[str, str],
        body: bytes | None,
        limit_s: float,
        most_bytes: int | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Answered:
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=min(CONNECT_S, limit_s))
        method, headers = "GET", {"accept": "application/json", **more}
        if body is not None:
            method, headers["content-type"] = "POST", "application/json"
        async with self.http.request(
            method,
            url,
            params=params,
            data=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            if most_bytes is None:
                return Answered(answer.status, await answer.read())
            found = bytearray()
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                found += piece
                if len(found) > most_bytes:
                    raise aiohttp.ClientPayloadError(f"its answer has more than {most_bytes} bytes")
            return Answered(answer.status, bytes(found))


def plain(error: BaseException, limit_s: float = ANSWER_S) -> str:
    """What went wrong with a connection, for people."""
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if refused := certificate_refused(error):
        return refused
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nothing answers at {error.host}:{error.port}"
    return " ".join(str(error).split())[:160] or type(error).__name__
