"""Access control: hosts, tokens, and headers that restrict a browser to the page's own requests."""

import hmac
from functools import partial
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stele.console.settings import is_loopback
from stele.runtime.callers import Callers
from stele.runtime.http import HttpError, JsonResponse
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

        answer = self._app
        try:
            self._check(scope)
        except HttpError as error:
            answer = JsonResponse(error.body, error.status)
        await answer(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        """Raise HttpError for a request that is refused."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._token and self._callers is None and not is_loopback(host_of(host)):
            text = f"The console answers on this machine alone, not as {host[:80]}."
            hint = "Open it as http://127.0.0.1, or set STELE_CONSOLE_TOKEN."
            raise HttpError(421, "foreign_host", text, hint=hint)
        if scope["method"] == "POST":
            origin = headers.get("origin", "")
            if headers.get(MARK) != "1" or (origin and origin.partition("://")[2] != host):
                text = "This does not come from the console's page."
                hint = f"Programs send the header {MARK}: 1."
                raise HttpError(403, "foreign_page", text, hint=hint)
        if not path.startswith("/api/"):
            return
        if headers.get("sec-fetch-site", "none") not in OWN_SITES:
            text = "Another site's page asks for this."
            raise HttpError(403, "foreign_page", text, hint="Open the console's own page.")
        self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        """Raise HttpError for a wrong token. The handler finds the caller in the state."""
        shown, state = authorization_of(headers), scope.setdefault("state", {})
        if self._callers is not None:
            state["caller"] = self._callers.who(shown)
            state["is_let_in"] = partial(_is_let_in, self._callers, shown)
        elif self._token:
            given = shown.removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                text = "The console's token is missing or wrong."
                hint = (
                    "Open the page by the address that the console has logged, or type the token."
                )
                raise HttpError(401, "token_needed", text, hint=hint)


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
