"""A transport of the product over an HTTP client of a test."""

from collections.abc import Mapping
from types import MappingProxyType

import httpx

from stele.runtime.transport import OnPiece


class ClientTransport:
    """Sends each request through the client, whatever its address."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(
        self,
        url: str,
        on_piece: OnPiece,
        total_s: float | None,
        params: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
        method: str = "GET",
        body: bytes | None = None,
    ) -> int:
        try:
            answer = await self._client.request(method, url, params=params or None)
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error
        on_piece(answer.status_code, answer.content)
        return answer.status_code

    async def close(self) -> None: ...
