"""Base classes of all domains: facts, commands, and the rejection of a command."""

from typing import ClassVar, TypeVar

import msgspec

T = TypeVar("T")


class Fact(msgspec.Struct, frozen=True, tag=True):
    """Base of all facts. The tag is the class name, in JSON and in the Avro schema."""


class Command(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all commands. The tag is the command's name in JSON and the record's name in Avro."""

    of_services: ClassVar[bool] = False
    """True for a protocol step that only Stele's own processes send. They have checked its
    preconditions.
    """


class Rejection(msgspec.Struct, frozen=True):
    """The reason for a rejected command: a code, a sentence, a hint, and details for programs."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, str] = {}


class Rejected(Exception):
    """A command or a change of the schema is rejected. ``decide`` returns the rejection."""

    def __init__(self, code: str, message: str, hint: str = "", /, **details: str) -> None:
        super().__init__(message)
        self.rejection = Rejection(code, message, hint, details)


def required(found: T | Rejection) -> T:
    """Return the value of a check that returns a rejection. Raises Rejected within a decision."""
    if isinstance(found, Rejection):
        raise Rejected(found.code, found.message, found.hint, **found.details)
    return found
