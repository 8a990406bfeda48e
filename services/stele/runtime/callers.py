"""Authentication of changes over HTTP: callers by the tokens in a file, and the commands each
may send.

Services and nodes send their commands through Kafka, where the brokers authenticate them. Reads
need no token.
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
from stele.runtime.answers.common import LASTING
from stele.runtime.http import ErrorCode, HttpError
from stele.runtime.logs import get_logger
from stele.runtime.settings import ConfigurationError, ServiceSettings
from stele.runtime.tokens import digest_of

MAX_NAME_CHARS: Final = 256
MAX_BYTES: Final = 1 << 20
"""Largest file. It is read in the event loop: ten thousand lines take 0.3 s."""
LOOK_S: Final = 1.0
"""A change of the file takes effect after at most this time."""
RECOVER: Final = "recover"
"""Pseudo-command for a recovery of the log, which is requested from catch-up."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAMES: Final = frozenset(str(each.__struct_config__.tag) for each in COMMANDS)
_OF_SERVICES: Final = frozenset(
    str(each.__struct_config__.tag) for each in COMMANDS if each.of_services
)
_CHALLENGE: Final = (("www-authenticate", 'Bearer realm="stele"'),)

log = get_logger(__name__)


class Caller(NamedTuple):
    """A caller and the names of the commands that it may send, perhaps with ``RECOVER``."""

    name: str
    may: frozenset[str]

    def check(self, what: str) -> None:
        """Raise HttpError when the caller may not send ``what``."""
        if what not in self.may:
            log.warning("a caller may not ask for this", caller=self.name, command=what)
            raise HttpError(
                403,
                "not_allowed",
                f"'{self.name}' may not ask for {what}.",
                hint="An operator can add it to this caller's line in the file of callers.",
                details={"caller": self.name, "command": what},
            )

    def actor(self, claimed: str) -> str:
        """Return the actor for the log.

        Raises HttpError when ``claimed`` is not the caller's name.
        """
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
    """The callers in a file, which is read again after a change.

    While it is unreadable, all are refused.
    """

    def __init__(self, file: Path, now: Callable[[], float] | None = None) -> None:
        """Read the file. Raises ValueError, OSError."""
        self._file = file
        self._now = now or time.monotonic
        self._seen = _mark(file)
        self._known: Mapping[bytes, Caller] = read_callers(_text(file))
        self._problem = ""
        self._look_s = self._now() + LOOK_S

    def who(self, authorization: str) -> Caller:
        """Return the caller whose token the header holds. Raises HttpError."""
        if trouble := self.trouble():
            raise HttpError(
                503,
                ErrorCode.UNAVAILABLE,
                trouble,
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
            why = "The token is unknown here."
            hint = "Was it withdrawn, or is it of another cluster? `stele token` makes a new one."
        raise HttpError(401, "token_needed", why, hint=hint, headers=_CHALLENGE)

    def trouble(self) -> str:
        """Return why all callers are refused; empty when the file's callers are accepted."""
        self._read_again()
        return self._problem and f"All requests are rejected: {self._problem}"

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
            # Fail closed: with an unreadable file the old callers no longer count.
            self._problem = problem
        else:
            self._seen, self._problem = seen, ""
            log.info("callers were read again", callers=len(self._known))


def require_actor(actor: str, authorization: str) -> None:
    """Raise HttpError for a request that has no actor but a token, which this process does not check.

    The history would not name the actor.
    """
    if authorization and not actor:
        raise HttpError(
            400,
            "token_not_checked",
            "A token was sent to name the actor, and this process checks no tokens.",
            hint="Give the actor, as with --actor, or set STELE_HTTP_CALLERS_FILE for the process.",
        )


def callers_of(settings: ServiceSettings) -> Callers | None:
    """Return the callers; None when changes over HTTP are not authenticated.

    Raises ConfigurationError.
    """
    file = settings.http_callers_file
    try:
        return Callers(Path(file)) if file else None
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"STELE_HTTP_CALLERS_FILE: {file} cannot be read ({_plain(error)})."
        ) from error


def read_callers(text: str) -> dict[bytes, Caller]:
    """Parse callers by the hashes of their tokens.

    A line is a name and the SHA-256 of the token in hex. A third word limits the caller: the names
    of its commands, separated by commas. Without it a caller may send all commands of people and
    recover the log. A name may have several tokens. Text after ``#`` is ignored. The last line must
    end with a newline too: a caller in a half-written line might be allowed more.

    Raises ValueError with the number of the line but none of its words. The message is public, and
    a line may contain a token by mistake.
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
                raise ValueError("an earlier line has the same token")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        found[digest] = caller
    if not found:
        raise ValueError("it has no callers; `stele token NAME` makes a line")
    return found


def line_of(name: str, token: str, may: tuple[str, ...] = ()) -> str:
    """Return the line of a caller in the format of ``read_callers``, without its newline.

    Raises ValueError.
    """
    unknown = sorted({*may} - _NAMES - {RECOVER})
    if unknown:
        raise ValueError(f"there is no command {unknown[0] or 'without a name'}")
    words = [name, digest_of(token).hex(), *([",".join(may)] if may else [])]
    _read_line(words)
    return " ".join(words)


def _read_line(words: list[str]) -> tuple[bytes, Caller]:
    """Parse the words of a line. Raises ValueError."""
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
    """Return a value that differs after the file was written or replaced, whatever its timestamps.

    Raises OSError, and ValueError for a file whose reading would block.
    """
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _text(file: Path) -> str:
    """Return the text with its original line ends. Raises OSError, ValueError."""
    return file.read_bytes().decode("utf-8")


def _plain(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
