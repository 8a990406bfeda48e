"""What all domains are made of: facts, commands, and how a command is refused."""

from typing import ClassVar

import msgspec

JsonValue = dict[str, object]


class Fact(msgspec.Struct, frozen=True, tag=True):
    """Base of all facts; the tag is the class name, in JSON as in the Avro schema."""


class Command(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all commands; the tag is their name in JSON and the record's name in Avro."""

    of_services: ClassVar[bool] = False
    """A step of a protocol of Stele's own processes, right by what its sender knows: nobody else sends it."""


class Rejection(msgspec.Struct, frozen=True):
    """Why a command was not applied: a code, a sentence, what to do, and details for programs."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, str] = {}
