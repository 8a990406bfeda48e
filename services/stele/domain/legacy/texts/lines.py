"""Lines with their numbers, the error that names one, and values that several texts have."""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LOAD: Final = r"(?:\?|[\d.,]+ (?:bytes|[KMGTP]i?B))"
OWNS: Final = r"(?:\?|(?:[\d.,]+|NaN)%)"
NOTES: Final = ("Note: ", 'Warning: "nodetool ring" ', "To view status related info of a node use ")
SHOWN: Final = 100


class TextError(Exception):
    """A text is not what it should be; ``line`` counts from 1, and 0 is the text as a whole."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}" if line else why)
        self.line = line


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines that say something, without blanks at their ends and without nodetool's notes."""
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.rstrip()
        if bare and not bare.lstrip().startswith(NOTES):
            yield number, bare


def not_understood(number: int, line: str, expected: str) -> TextError:
    return TextError(number, f"'{line.strip()[:SHOWN]}' is not understood; expected {expected}")


def address_of(number: int, text: str) -> str:
    """An IP address in its one form. Raises TextError."""
    try:
        return str(ip_address(text.removeprefix("/")))
    except ValueError:
        raise TextError(
            number,
            f"'{text[:SHOWN]}' is no IP address; print addresses without ports and names (no -r, no -pp)",
        ) from None


def with_port(number: int, text: str) -> str:
    """The address of ``address:port`` or ``[address]:port``."""
    host, _, _ = text.rpartition(":")
    return address_of(number, host.removeprefix("[").removesuffix("]"))


def uuid_of(number: int, text: str) -> str:
    if not UUID.fullmatch(text.lower()):
        raise TextError(number, f"'{text[:SHOWN]}' is no UUID")
    return text.lower()


def token_of(number: int, text: str) -> int:
    """A token of Murmur3. Raises TextError: other partitioners have other tokens."""
    try:
        token = int(text)
    except ValueError:
        token = 2**63
    if not -(2**63) <= token < 2**63:
        raise TextError(number, f"'{text[:SHOWN]}' is no token of Murmur3Partitioner")
    return token


def addresses_of(number: int, text: str) -> tuple[str, ...]:
    """``a, b, c`` as it stands in brackets."""
    return tuple(address_of(number, each) for each in text.split(", ")) if text else ()
