"""Requests to the services, each with a time limit. A service that does not answer is named."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stele.client import plain
from stele.runtime.transport import FAILURES, HttpReply, Transport, answer_of

ANSWER_S: Final = 10.0
DUMP_S: Final = 120.0
"""Limit of a dump. A state with a million tablets takes a while."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Limit of a health answer. Its address comes from the log, so anyone may have set it."""
LATER: Final = frozenset({502, 503, 504})
"""Statuses after which the next instance is tried."""


class AwayError(Exception):
    """Raised when no instance of a service answers."""

    def __init__(self, service: str, why: str) -> None:
        super().__init__(f"{service} does not answer: {why}")
        self.service = service
        self.why = why


class Upstream:
    """One client for all; it begins with the instance that answered last."""

    def __init__(self, http: Transport, services: Mapping[str, tuple[str, ...]]) -> None:
        self._http = http
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
    ) -> HttpReply:
        """Return the first answer of any instance.

        With a ``body``, send a POST. Raises AwayError.
        """
        credentials = {"authorization": authorization} if authorization else {}
        urls, why = self.services.get(service, ()), "its address is not set"
        given = {name: str(value) for name, value in (params or {}).items()}
        last: HttpReply | None = None
        for turn in range(len(urls)):
            at = (self._first[service] + turn) % len(urls)
            try:
                last = await self._one(urls[at] + path, given, body, limit_s, more=credentials)
            except FAILURES as error:
                why = f"{urls[at]}: {plain(error, limit_s)}"
                continue
            if last.status not in LATER:
                # The next request starts at the instance that answered, not at one that is away.
                self._first[service] = at
                return last
        if last is not None:
            return last
        raise AwayError(service, why)

    async def one(self, url: str, limit_s: float) -> HttpReply:
        """Return the answer of one address. Raises AwayError."""
        try:
            return await self._one(url, {}, None, limit_s, MOST_BYTES)
        except FAILURES as error:
            raise AwayError(url, plain(error, limit_s)) from error

    async def body(self, url: str, limit_s: float) -> bytes:
        """Return the body of one address; empty if it does not answer, or with an error."""
        try:
            answer = await self.one(url, limit_s)
        except AwayError:
            return b""
        return answer.body if answer.ok else b""

    async def _one(
        self,
        url: str,
        params: Mapping[str, str],
        body: bytes | None,
        limit_s: float,
        most_bytes: int | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> HttpReply:
        method, headers = "GET", {"accept": "application/json", **more}
        if body is not None:
            method, headers["content-type"] = "POST", "application/json"
        return await answer_of(self._http, url, limit_s, params, headers, method, body, most_bytes)
