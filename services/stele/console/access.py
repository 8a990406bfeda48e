"""Access control: hosts, tokens, and headers that restrict a browser to the page's own requests."""

import hmac
import json
from functools import partial
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stele.console.settings import is_loopback
from stele.runtime.callers import Callers
from stele.runtime.http import HttpError
from stele.runtime.tokens import authorization_of

MARK: Final = "x-stele-console"
"""A header that another site's page can send only after a CORS preflight, which is never
granted."""
OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` that are accepted: the page itself, or a typed address."""
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class AccessControl:
    """Middleware that refuses requests before any handler runs.

    Without a ``token``, only requests whose Host header names this machine are accepted. A name
    that another party's DNS points here is not the page's own. With ``callers``, each caller sends
    its own token. Handlers find the caller in ``request.state.caller``. ``request.state.is_let_in``
    returns whether the caller's token is still valid.
    """

    def __init__(self, app: ASGIApp, token: str, callers: Callers | None = None) -> None:
        self._app = app
        self._token = token
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, guarded)
            return
        status, code, text, hint = problem
        body = json.dumps({"code": code, "message": text, "hint": hint, "details": {}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await guarded({"type": "http.response.start", "status": status, "headers": headers})
        await guarded({"type": "http.response.body", "body": body})

    def _problem(self, scope: Scope) -> tuple[int, str, str, str] | None:
        """Return status, code, message and hint of a refusal, or None."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._token and self._callers is None and not is_loopback(host_of(host)):
            text = f"The console answers on this machine alone, not as {host[:80]}."
            return (
                421,
                "foreign_host",
                text,
                "Open it as http://127.0.0.1, or set STELE_CONSOLE_TOKEN.",
            )
        if scope["method"] == "POST":
            origin = headers.get("origin", "")
            if headers.get(MARK) != "1" or (origin and origin.partition("://")[2] != host):
                text = "This does not come from the console's page."
                return 403, "foreign_page", text, f"Programs send the header {MARK}: 1."
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in OWN_SITES:
            text = "Another site's page asks for this."
            return 403, "foreign_page", text, "Open the console's own page."
        return self._of_token(scope, headers) if path.startswith("/api/") else None

    def _of_token(self, scope: Scope, headers: Headers) -> tuple[int, str, str, str] | None:
        """Check the token.

        Return the refusal, or None; the handler finds the caller in the state.
        """
        shown, state = authorization_of(headers), scope.setdefault("state", {})
        if self._callers is not None:
            try:
                state["caller"] = self._callers.who(shown)
                state["is_let_in"] = partial(_is_let_in, self._callers, shown)
            except HttpError as error:
                return error.status, error.body.code, error.body.message, error.body.hint
        elif self._token:
            given = shown.removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                hint = (
                    "Open the page by the address that the console has logged, or type the token."
                )
                return 401, "token_needed", "The console's token is missing or wrong.", hint
        return None


def _is_let_in(callers: Callers, shown: str) -> bool:
    try:
        callers.who(shown)
    except HttpError:
        return False
    return True


def host_of(header: str) -> str:
    """Return the name or address in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
