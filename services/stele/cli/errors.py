"""Errors of the command line: a closed set, each with an exit code and a hint."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, for scripts."""

    OK = 0
    FAILED = 1  # refused by the cluster, or a request that ended badly
    USAGE = 2
    INTERRUPTED = 130  # 128 + SIGINT, as shells expect
    UNREACHABLE = 3  # no service answered in time; whether a change took effect may be unknown


class CliError(Exception):
    """An error that is printed as one line: the message, then the hint."""

    exit_code = Exit.FAILED

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def line(self) -> str:
        """Return message and hint on one line."""
        parts = (self.message, self.hint)
        return " ".join(" ".join(part.split()) for part in parts if part)


class RefusedError(CliError):
    """Raised when a service refuses a command or query; ``code`` is its reason."""


class TooOldError(RefusedError):
    """Raised when the request id is not newer than ``horizon_ms``, the log's horizon.

    The log decided nothing for this id, now or before.
    """

    def __init__(self, refused: RefusedError, horizon_ms: int) -> None:
        super().__init__(refused.message, refused.hint, refused.code)
        self.horizon_ms = horizon_ms


class UsageError(CliError):
    """Raised when the command line itself is wrong."""

    exit_code = Exit.USAGE


class UnreachableError(CliError):
    """Raised when no service answered within the time limit."""

    exit_code = Exit.UNREACHABLE
