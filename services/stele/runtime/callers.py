"""Who may change something by HTTP: callers by the tokens in a file, and what each of them may ask for.

Services and nodes send their commands by Kafka, where the brokers know who they are. Reads ask nobody.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from stele.domain.commands import COMMANDS
from stele.domain.names import BALANCER, COORDINATOR
from stele.runtime.answers.errors import LASTING
from stele.runtime.http_errors import ErrorCode, HttpError
from stele.runtime.logs import get_logger
from stele.runtime.settings import ConfigurationError, ServiceSettings
from stele.runtime.tokens import digest_of

MAX_NAME_CHARS: Final = 256
MAX_BYTES: Final = 1 << 20
"""Of the file, which is read in the event loop: ten thousand lines, 0.3 s."""
LOOK_S: Final = 1.0
"""A file that has changed counts so long after that at the latest."""
RECOVER: Final = "recover"
"""Stands among commands for a recovery of the log, which catch-up is asked for."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAMES: Final = frozenset(str(each.__struct_config__.tag) for each in COMMANDS)
_OF_SERVICES: Final = frozenset(
    str(each.__struct_config__.tag) for each in COMMANDS if each.of_services
)
_CHALLENGE: Final = (("www-authenticate", 'Bearer realm="stele"'),)

log = get_logger(__name__)


class Caller(NamedTuple):
    """Who asks, and which commands he may send, by their names; ``RECOVER`` among them."""

    name: str
    may: frozenset[str]

    def check(self, what: str) -> None:
        """Raises HttpError where ``what`` is not for this caller."""
        if what not in self.may:
            log.warning("a caller may not ask for this", caller=self.name, command=what)
            raise HttpError(
                403,
                "not_allowed",
                f"'{self.name}' may not ask for {what}.",
                hint="Whoever keeps the file of callers can name it in the line of this one.",
                details={"caller": self.name, "command": what},
            )

    def actor(self, claimed: str) -> str:
        """Who is written into the log. Raises HttpError for another name than the caller's."""
        if claimed and claimed != self.name:
            raise HttpError(
                403,
                "other_actor",
                f"The token is of '{self.name}', and the actor is given as '{claimed[:80]}'.",
                hint=f"Leave the actor out, or give {self.name}.",
                details={"caller": self.name},
            )
        return self.name


class Callers:
    """Those in a file, which is read again once it has changed. One that cannot be read lets nobody in."""

    def __init__(self, file: Path, now: Callable[[], float] | None = None) -> None:
        """Raises ValueError, OSError."""
        self._file = file
        self._now = now or time.monotonic
        self._seen = _mark(file)
        self._known: Mapping[bytes, Caller] = read_callers(_text(file))
        self._problem = ""
        self._look_s = self._now() + LOOK_S

    def who(self, authorization: str) -> Caller:
        """Whose token the header holds. Raises HttpError."""
        self._read_again()
        if self._problem:
            raise HttpError(
                503,
                ErrorCode.UNAVAILABLE,
                f"Nobody is let in: {self._problem}",
                hint="Correct the file: it counts a second later.",
                details={LASTING: True},
            )
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            why = "A change needs a token, and none was sent."
            hint = "Send `Authorization: Bearer TOKEN`; the command line takes --token-file."
        elif scheme.lower() != "bearer":
            why, hint = "This is no token.", "Send `Authorization: Bearer TOKEN`."
        else:
            found = self._known.get(digest_of(token.strip()))
            if found is not None:
                return found
            why = "Nobody here has this token."
            hint = "Was it withdrawn, or is it of another cluster? `stele token` makes a new one."
        raise HttpError(401, "token_needed", why, hint=hint, headers=_CHALLENGE)

    def trouble(self) -> str:
        """Why nobody is let in; empty: who is in the file is."""
        self._read_again()
        return self._problem and f"Nobody is let in by HTTP: {self._problem}"

    def _read_again(self) -> None:
        if self._now() < self._look_s:
            return
        self._look_s = self._now() + LOOK_S
        try:
            seen = _mark(self._file)
            if seen == self._seen and not self._problem:
                return
            self._known = read_callers(_text(self._file))
        except (OSError, ValueError) as error:
            problem = f"{self._file} cannot be read ({_plain(error)})."
            if problem != self._problem:
                log.error("callers cannot be read", problem=problem)
            self._problem = problem
        else:
            self._seen, self._problem = seen, ""
            log.info("callers were read again", callers=len(self._known))


def callers_of(settings: ServiceSettings) -> Callers | None:
    """None: changes by HTTP ask nobody who he is. Raises ConfigurationError."""
    file = settings.http_callers_file
    try:
        return Callers(Path(file)) if file else None
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"STELE_HTTP_CALLERS_FILE: {file} cannot be read ({_plain(error)})."
        ) from error


def read_callers(text: str) -> dict[bytes, Caller]:
    """Callers by the hashes of their tokens. Raises ValueError, which names the line and none of its words:
    everybody is told, and somebody may have written a token there.

    A line is a name, the SHA-256 of the token in hex, and where a caller may not send all commands of people
    and recover the log, the names of those that he may, separated by commas. A name may have several tokens.
    What is behind ``#`` is left out. The last line ends as the others do: of one that is half written a
    caller may do more.
    """
    *lines, rest = text.split("\n")
    if rest:
        raise ValueError("its last line does not end; was all of it written?")
    found = dict[bytes, Caller]()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            digest, caller = _read_line(words)
            if digest in found:
                raise ValueError("its token stands in a line before it")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        found[digest] = caller
    if not found:
        raise ValueError("it has no callers; `stele token NAME` makes a line")
    return found


def line_of(name: str, token: str, may: tuple[str, ...] = ()) -> str:
    """The line of a caller, as ``read_callers`` takes it, without its end. Raises ValueError."""
    unknown = sorted({*may} - _NAMES - {RECOVER})
    if unknown:
        raise ValueError(f"there is no command {unknown[0] or 'without a name'}")
    words = [name, digest_of(token).hex(), *([",".join(may)] if may else [])]
    _read_line(words)
    return " ".join(words)


def _read_line(words: list[str]) -> tuple[bytes, Caller]:
    """Raises ValueError."""
    if len(words) not in (2, 3):
        raise ValueError("write a name, the SHA-256 of its token, and commands separated by commas")
    name, digest = words[:2]
    if not name or not name.isprintable() or {*" #"} & {*name} or len(name) > MAX_NAME_CHARS:
        raise ValueError(
            f"what stands first is no name: at most {MAX_NAME_CHARS} characters, no blanks, no #"
        )
    if name in (BALANCER, COORDINATOR):
        raise ValueError("what stands first is the name that a service of Stele's own goes by")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("what stands behind the name is no SHA-256: 64 digits of 0-9a-f")
    if digest == digest_of("").hex():
        raise ValueError("this is the SHA-256 of nothing, which everybody could show")
    if len(words) == 2:
        return bytes.fromhex(digest), Caller(name, _NAMES - _OF_SERVICES | {RECOVER})
    may = words[2].split(",")
    for number, each in enumerate(may, 1):
        if each not in _NAMES and each != RECOVER:
            raise ValueError(f"there is no command of the name that stands at place {number}")
    return bytes.fromhex(digest), Caller(name, frozenset(may))


def _mark(file: Path) -> tuple[int, int, int, int, int]:
    """Differs once the file was written or another one stands in its place, whatever times they are given.
    Raises OSError; ValueError for what would hold up who reads it.
    """
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _text(file: Path) -> str:
    """With the ends of lines that it has. Raises OSError, ValueError."""
    return file.read_bytes().decode("utf-8")


def _plain(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
