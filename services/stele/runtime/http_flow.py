"""How bytes flow on a connection: unread while there is enough to parse, unchunked to who knows no chunks."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Flow(FlowControl):
    """Handlers that ask for more of their body do not have the socket read while there is enough to parse."""

    holds_back = False

    def resume_reading(self) -> None:
        if not self.holds_back:
            super().resume_reading()


def without_chunks(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 has none: a body whose length nobody knows ends with its connection."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def plain(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plain  # type: ignore[method-assign]
