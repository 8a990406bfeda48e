"""HTTP to the services: time limits, all addresses of a service, retries with one request id.

Some services are optional: their answers only add details.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from stele.cli.errors import CliError, RefusedError, TooOldError, UnreachableError, UsageError
from stele.cli.notice import RetryNotice
from stele.cli.places import ServiceAddresses
from stele.domain.commands import Envelope
from stele.domain.not_taken import EXPIRED, HORIZON_MS
from stele.runtime.answers.common import LASTING, ErrorBody
from stele.runtime.answers.metadata_log import OutcomeAnswer

if TYPE_CHECKING:
    import ssl


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Hide a module inside the block, unless it was imported before."""
    modules: dict[str, Any] = sys.modules
    if module in modules:
        yield
        return
    modules[module] = None
    try:
        yield
    finally:
        del modules[module]


# httpx has a command line that needs click, pygments and progress bars: a third of its import time.
with _hidden("httpx._main"):
    import httpx

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
RETRY_FOR_S = 30.0
"""Limit of retries. A killed service is back within seconds; a supervisor's longest back-off is 10
s."""
RETRY_WAIT_S = 0.1
RETRY_WAIT_MAX_S = 2.0
LEAST_S = 0.05
"""Least time for an attempt. With less time left, none is made."""
ASK_S = 3.0
"""Limit for an answer that only adds details to the output."""
SILENCE_S = 60.0
"""Silence after which an event stream counts as dead. Keep-alives come more often."""

NO_ADDRESS = (httpx.InvalidURL, UnicodeError)
NO_ANSWER = (httpx.TransportError, *NO_ADDRESS)
"""Errors when no process answers, or when an address in the log is invalid for this client."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, *NO_ADDRESS)
_TRY_AGAIN = (503, 504)
_NOBODYS_PATH = ("", "not_found")
"""Error codes that are about the path and not about the object. Empty: another program answered."""


class _TryAgainError(Exception):
    """Raised when no instance could answer.

    ``why`` is the last reason. ``lasting`` is the refusal, where waiting does not help.
    """

    def __init__(self, why: str, lasting: CliError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.lasting = lasting


class _Ailing(msgspec.Struct):
    """The reason in an answer of /healthz."""

    reason: str = ""


class Deadline:
    """A time limit on the monotonic clock."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        return self._end_s - time.monotonic()


class Client:
    """Sends requests to the services at ``places``. It must not be shared by threads."""

    def __init__(
        self,
        places: ServiceAddresses,
        *,
        timeout_s: float = 15.0,
        retry_for_s: float = RETRY_FOR_S,
        notice: RetryNotice | None = None,
        token: str = "",
    ) -> None:
        """Create a client.

        ``token`` is sent with changes, and only to metadata-log and catch-up.
        """
        self.places = places
        self.has_token = bool(token)
        self._credentials = {"authorization": f"Bearer {token}"} if token else {}
        self.timeout_s = timeout_s
        self._notice = notice or RetryNotice(None)
        self._retry_for_s = retry_for_s
        self.silent: dict[str, str] = {}
        """Reasons why optional services, which get one attempt, did not answer; by service."""
        self._first: dict[str, int] = {}
        self._arrived = 0
        """Number of requests that may have reached a service, answered or not."""
        self._by_kind = dict[tuple[bool, bool], httpx.Client]()

    def get(self, service: str, path: str, kind: type[T], **params: object) -> T:
        """Return the decoded answer of any instance of a service. Raises CliError."""
        return decode(self.get_raw(service, path, **params), kind)

    def get_raw(self, service: str, path: str, **params: object) -> bytes:
        """Return the body as received. Raises CliError."""
        given = {key: str(value) for key, value in params.items() if value is not None}
        answer = self._retrying(service, "GET", path, params=given)
        if answer.is_success:
            return answer.content
        error = refusal_of(answer)
        if answer.status_code == httpx.codes.NOT_FOUND and error.code in _NOBODYS_PATH:
            raise RefusedError(
                f"The process at {answer.url.copy_with(path='/', query=None)} is no {service}: 404 for {path}.",
                f"Is the address right ({self.places.source})?{self.places.look}",
            )
        raise error

    def post(self, service: str, path: str, body: object) -> httpx.Response:
        """Return any instance's answer to a query that is too long for a URL. Raises CliError."""
        return self._retrying(service, "POST", path, content=msgspec.json.encode(body))

    def get_one(self, url: str, kind: type[T]) -> T:
        """Return the answer of one address, without retries. Raises CliError."""
        return decode(self._one("GET", url, min(ASK_S, self.timeout_s)), kind)

    def send(
        self, method: str, url: str, content: bytes | None, **params: object
    ) -> httpx.Response:
        """Return the answer of one address, without retries. Raises the errors in ``NO_ANSWER``."""
        given = {key: str(value) for key, value in params.items()}
        return self._http(url).request(method, url, params=given, content=content)

    def get_bytes(self, url: str) -> bytes:
        """Return the body of one address, without retries. Raises CliError."""
        return self._one("GET", url, self.timeout_s)

    def post_bytes(self, url: str, content: bytes, **params: object) -> bytes:
        """Return the answer of a catch-up replica to a body, without retries. Raises CliError."""
        given = {key: str(value) for key, value in params.items()}
        hint = "Whether it took effect is unknown. Send it again: it takes effect once."
        more = {"params": given, "content": content, "headers": self._credentials}
        return self._one("POST", url, self._retry_for_s, hint, **more)

    def _one(
        self,
        method: str,
        url: str,
        limit_s: float,
        hint: str = "Is the process running?",
        **more: Any,
    ) -> bytes:
        try:
            answer = self._http(url).request(method, url, timeout=_timeout(limit_s), **more)
        except NO_ANSWER as error:
            raise UnreachableError(f"{url} does not answer ({_short(error)}).", hint) from error
        if not answer.is_success:
            raise refusal_of(answer)
        return answer.content

    def submit(self, envelope: Envelope) -> OutcomeAnswer:
        """Send a command until an instance answers, always under the same request id.

        Raises RefusedError for a rejection and UnreachableError when the outcome stays unknown.
        Raises TooOldError when the log takes no id of that time, but only if the command was sent
        once. An earlier attempt without an answer may have been decided and forgotten.
        """
        body, before = msgspec.json.encode(envelope), self._arrived
        try:
            answer = self._retrying("metadata-log", "POST", "/v1/commands", content=body)
        except UnreachableError as error:
            raise UnreachableError(
                f"The outcome of request {envelope.request_id} is unknown: {error.message}",
                f"Send it again with --request-id {envelope.request_id}: it takes effect once.",
            ) from error
        if answer.status_code == httpx.codes.CONFLICT or answer.is_success:
            outcome = decode(answer.content, OutcomeAnswer)
            if outcome.rejection is not None:
                refused = outcome.rejection
                raise RefusedError(f"Refused: {refused.message}", refused.hint, refused.code)
            return outcome
        refusal, horizon_ms = refusal_of(answer), _horizon_ms(answer)
        if isinstance(refusal, RefusedError) and horizon_ms >= 0 and self._arrived == before + 1:
            raise TooOldError(refusal, horizon_ms)
        raise refusal

    @contextmanager
    def stream(
        self, service: str, path: str, headers: Mapping[str, str], **params: object
    ) -> Iterator[Iterator[str]]:
        """Yield the lines of an event stream, from the first instance that answers. Raises
        CliError.

        A stream that is cut is not continued at another instance; this raises UnreachableError too.
        """
        last, begun = "", False
        given = {key: str(value) for key, value in params.items() if value is not None}
        limits = httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S, read=SILENCE_S)
        for url in self.places.of(service):
            try:
                with self._http(url).stream(
                    "GET", url + path, params=given, headers=dict(headers), timeout=limits
                ) as answer:
                    if not answer.is_success:
                        answer.read()
                        if answer.status_code not in _TRY_AGAIN:
                            raise refusal_of(answer)
                        last = refusal_of(answer).message
                        continue
                    begun = True
                    yield answer.iter_lines()
                    return
            except NO_ANSWER as error:
                last = _short(error)
                if begun:
                    break
        raise UnreachableError(f"{service} does not stream ({last}).", "Try again.")

    def close(self) -> None:
        for http in self._by_kind.values():
            http.close()

    def _http(self, url: str) -> httpx.Client:
        """Return the HTTP client for a URL.

        A client for plain HTTP loads no certificates, which takes 25 ms. Proxies of the environment
        are not used for this machine's own addresses: at a proxy they mean another machine.
        """
        kind = plain, here = url.startswith("http://"), is_here(url)
        if kind not in self._by_kind:
            limits = httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S)
            verify = not plain and _authorities()
            made = httpx.Client(timeout=limits, verify=verify, trust_env=not here)
            self._by_kind[kind] = made
        return self._by_kind[kind]

    def _retrying(
        self,
        service: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Return the first answer within the time limit. Each failure is shown during retries."""
        deadline = Deadline(self._retry_for_s)
        for attempt in count(1):
            try:
                answer = self._any_instance(service, method, path, params, content, deadline)
            except _TryAgainError as error:
                if error.lasting is not None:
                    self._notice.end()
                    raise error.lasting from error
                left_s = deadline.left_s()
                if left_s <= LEAST_S:
                    self._notice.end()
                    raise self._unreachable(service, error.why) from error
                self._notice.tell(error.why, attempt, left_s)
                pause_s = min(RETRY_WAIT_MAX_S, RETRY_WAIT_S * 2 ** min(attempt - 1, 8))
                time.sleep(min(pause_s * random.uniform(0.5, 1), left_s))
            else:
                self._notice.end()
                return answer
        raise AssertionError("counting has no end")

    def _headers(self, service: str) -> dict[str, str]:
        """Return the headers of a request with a body."""
        credentials = self._credentials if service == "metadata-log" else {}
        return {"content-type": "application/json", **credentials}

    def _unreachable(self, service: str, why: str) -> UnreachableError:
        ails = self._what_ails(service)
        running = "" if ails else " Is it running?"
        return UnreachableError(
            f"{service} did not answer in {self._retry_for_s:g} s ({why}).{ails}",
            f"Addresses {self.places.source}: {', '.join(self.places.of(service))}."
            f"{running}{self.places.look}",
        )

    def _what_ails(self, service: str) -> str:
        """Return the distinct problems in the instances' health, such as a missing topic."""
        said, deadline = list[str](), Deadline(min(ASK_S, self._retry_for_s))
        for url in self.places.of(service):
            limit_s = max(LEAST_S, deadline.left_s())
            with suppress(*NO_ANSWER, msgspec.DecodeError):
                answer = self._http(url).get(f"{url}/healthz", timeout=_timeout(limit_s))
                reason = msgspec.json.decode(answer.content, type=_Ailing).reason
                if reason and not answer.is_success and reason not in said:
                    said.append(reason)
        return "".join(f" Its health check reports: {reason.rstrip('.')}." for reason in said)

    def _any_instance(
        self,
        service: str,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        content: bytes | None,
        deadline: Deadline,
    ) -> httpx.Response:
        """Try all addresses once, starting with the one that answered last time."""
        urls = self.places.of(service)
        first = self._first.get(service, 0)
        why, stopped = "", list[CliError]()
        for step in range(len(urls)):
            index = (first + step) % len(urls)
            limit_s = min(self.timeout_s, deadline.left_s() / (len(urls) - step))
            try:
                with self._notice.waiting(urls[index], limit_s):
                    answer = self._http(urls[index]).request(
                        method,
                        urls[index] + path,
                        params=params,
                        content=content,
                        headers=self._headers(service) if content else None,
                        timeout=_timeout(limit_s),
                    )
            except NO_ANSWER as error:
                arrived = not isinstance(error, _NEVER_SENT)
                self._arrived += arrived
                failed = "does not answer" if arrived else "cannot be reached"
                why = f"{urls[index]} {failed}: {_short(error)}"
                if _certificate_refused(error):
                    stopped.append(UnreachableError(f"{why}."))
                continue
            self._arrived += 1
            if answer.status_code in _TRY_AGAIN:
                refused = refusal_of(answer)
                why = f"{urls[index]}: {refused.message}"
                if _is_lasting(answer):
                    stopped.append(UnreachableError(refused.message, refused.hint, refused.code))
                continue
            self._first[service] = index
            return answer
        raise _TryAgainError(why, stopped[0] if len(stopped) == len(urls) else None)


def _timeout(limit_s: float) -> httpx.Timeout:
    """Return a timeout that limits connecting and answering together."""
    limit_s = max(LEAST_S, limit_s)
    connect_s = min(CONNECT_TIMEOUT_S, limit_s / 2)
    return httpx.Timeout(limit_s - connect_s, connect=connect_s)


def is_here(url: str) -> bool:
    """Return True if an address is local to this machine. Raises httpx.InvalidURL."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError as error:  # a bracket that is not closed, say
        raise httpx.InvalidURL(str(error)) from error
    return host in ("localhost", "::1") or host.startswith("127.")


def refusal_of(answer: httpx.Response) -> CliError:
    """Return a service's error answer as a CliError."""
    body = _body_of(answer)
    if body is None:
        text = " ".join(answer.text.split())[:200]
        return RefusedError(f"{answer.url} answered {answer.status_code}: {text or 'nothing'}.")
    if answer.status_code == httpx.codes.GATEWAY_TIMEOUT:
        return UnreachableError(body.message, body.hint, body.code)
    return RefusedError(body.message, body.hint, body.code)


def _is_lasting(answer: httpx.Response) -> bool:
    """Return True if the service reports a failure that an operator must fix, so waiting is
    useless.
    """
    body = _body_of(answer)
    return body is not None and bool(body.details.get(LASTING))


def _horizon_ms(answer: httpx.Response) -> int:
    """Return the time (ms) that a request id must exceed; -1 if the answer is no EXPIRED error."""
    body = _body_of(answer)
    found = "" if body is None or body.code != EXPIRED else str(body.details.get(HORIZON_MS, ""))
    return int(found) if found.isdecimal() else -1


def _body_of(answer: httpx.Response) -> ErrorBody | None:
    """Return a service's error body; None if another program, such as a proxy, sent the answer."""
    try:
        return msgspec.json.decode(answer.content, type=ErrorBody)
    except msgspec.MsgspecError:
        return None


def decode(content: bytes, kind: type[T]) -> T:
    """Decode a service's answer. Raises CliError when it does not fit."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise CliError(
            f"The answer does not fit {kind}: {error}.", "Do CLI and service have one version?"
        ) from error


def _authorities() -> ssl.SSLContext:
    """Return the TLS context with the authorities of SSL_CERT_FILE. Raises UsageError.

    It applies to this machine's own addresses too.
    """
    from stele.runtime.http_tls import AUTHORITIES, check_authorities  # noqa: PLC0415  (only with TLS)

    try:
        if file := os.environ.get(AUTHORITIES):
            check_authorities(file)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return httpx.create_ssl_context()


def _certificate_refused(error: BaseException) -> str:
    from stele.runtime.http_tls import certificate_refused  # noqa: PLC0415  (only where something went wrong)

    return certificate_refused(error)


def _short(error: Exception | None) -> str:
    if error is not None and (refused := _certificate_refused(error)):
        return refused
    return " ".join(str(error).split())[:120] or type(error).__name__


def ask(client: Client, service: str, path: str, kind: type[T], **params: object) -> T | None:
    """Ask each address of a service in turn, without retries. Return None when none answers."""
    try:
        urls = client.places.of(service)
    except CliError:
        return None
    query = "&".join(f"{key}={value}" for key, value in params.items() if value is not None)
    for url in urls:
        try:
            return client.get_one(f"{url}{path}{'?' if query else ''}{query}", kind)
        except CliError as error:
            client.silent[service] = error.message
    return None


def ask_each(client: Client, service: str, path: str, kind: type[T]) -> dict[str, T]:
    """Ask each address of a service once, and return the answers by address."""
    found = dict[str, T]()
    for url in client.places.urls.get(service, ()):
        with suppress(CliError):
            found[url] = client.get_one(f"{url}{path}", kind)
    return found


def is_known(client: Client, service: str) -> bool:
    """Return True if an address of the service is known.

    Without one, a missing answer means nothing.
    """
    return bool(client.places.urls.get(service))


class ArchiveReplica(msgspec.Struct, frozen=True):
    """The fields of an ``ArchiveAnswer`` that tables need. That class is slow to import.

    ``epoch`` is the newest that the replica has of log ``log_id``. ``trouble`` is the reason
    why it stopped reading.
    """

    replica_id: str
    log_id: str
    epoch: int
    trouble: str


def replicas_of(client: Client) -> dict[str, ArchiveReplica]:
    """Return the catch-up replicas that answer, by address."""
    return ask_each(client, "catch-up", "/v1/archive", ArchiveReplica)


def older_log(client: Client) -> ArchiveReplica | None:
    """Return the replica that has most epochs of the newest log, or None if none has any."""
    held = [each for each in replicas_of(client).values() if each.epoch]
    return max(held, key=lambda each: (each.log_id, each.epoch), default=None)
