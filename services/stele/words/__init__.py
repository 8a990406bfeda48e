"""Sentences about the log and the services, shared by the command line and the console."""

from __future__ import annotations


class GivenError(ValueError):
    """Raised for a text that cannot be parsed: the message says why, the hint what to enter."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
