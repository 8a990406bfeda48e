"""Addresses of nodes: their validity for a client, and their normal form.

The checks use the text alone, so that every process decides alike. They do not contact the host.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from string import ascii_letters
from typing import Final

PORTS: Final = {"http": 80, "https": 443}
"""The schemes, and the default port of each."""
MAX_PORT: Final = 65535
MAX_CHARS: Final = 2048
MAX_HOST_CHARS: Final = 253
"""Longest name in DNS."""
MAX_LABEL_CHARS: Final = 63
COMPARED: Final = 4096
"""Size of the cache of normal forms. A new address is compared with those of all members."""
_NOT_IN_URLS: Final = frozenset(' "<>\\^`{|}')
_DIGITS_AND_DOTS: Final = frozenset("0123456789.")
_OF_HOSTS: Final = frozenset(ascii_letters) | _DIGITS_AND_DOTS | {"-", "_"}


class NoAddressError(ValueError):
    """The address is unusable for clients. The text gives the reason, as the end of a sentence."""


def why_no_address(address: str) -> str:
    """Return why a client cannot use the address, as the end of a sentence; empty if it can."""
    try:
        normal_address(address)
    except NoAddressError as error:
        return str(error)
    return ""


def is_same_address(one: str, other: str) -> bool:
    """Return True if both lead to the same place, in any spelling.

    An invalid address equals only itself.
    """
    if one == other:
        return True
    try:
        return normal_address(one) == normal_address(other)
    except NoAddressError:
        return False


@lru_cache(COMPARED)
def normal_address(address: str) -> str:
    """Return the address in its normal form. Raises NoAddressError.

    Scheme and host are in lower case, and the port is explicit. There is no user and no final
    slash.
    """
    if len(address) > MAX_CHARS:
        raise NoAddressError(f"it has more than {MAX_CHARS} characters")
    scheme, separator, rest = address.partition("://")
    scheme = scheme.lower()
    if scheme not in PORTS or not separator:
        raise NoAddressError("it does not begin with http:// or https://")
    if not address.isprintable() or not _NOT_IN_URLS.isdisjoint(address):
        raise NoAddressError("it has a space, or another character that no URL has")
    if "?" in rest or "#" in rest:
        raise NoAddressError("it ends with a query, and paths are put behind it")
    place, _, path = rest.partition("/")
    # A user name does not lead to another place, so it is dropped.
    host, port = _host_and_port(place.rpartition("@")[2])
    return f"{scheme}://{host}:{port or PORTS[scheme]}/{path}".rstrip("/")


def _host_and_port(place: str) -> tuple[str, int]:
    """Return host and port; the port is 0 where none is given. Raises NoAddressError."""
    if place.startswith("["):
        inside, bracket, behind = place[1:].partition("]")
        if not bracket or (behind and not behind.startswith(":")):
            raise NoAddressError("its brackets hold no host")
        return f"[{_ipv6(inside)}]", _port(behind[1:])
    host, _, port = place.partition(":")
    if ":" in port:
        raise NoAddressError("write an IPv6 address in brackets: http://[::1]:7100")
    return _name(host), _port(port)


def _port(text: str) -> int:
    """Return the port, or 0 for an empty text. Raises NoAddressError."""
    if not text:
        return 0
    if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)):
        port = int(text)
        if 1 <= port <= MAX_PORT:
            return port
    raise NoAddressError(f"its port is none from 1 to {MAX_PORT}")


def _ipv6(text: str) -> str:
    try:
        return str(IPv6Address(text))
    except ValueError:
        raise NoAddressError("the text in brackets is no IPv6 address") from None


def _name(host: str) -> str:
    """Return the host name in lower case. Raises NoAddressError."""
    if not host:
        raise NoAddressError("it names no host")
    if "[" in host or "]" in host:
        raise NoAddressError("its host has brackets, which are of IPv6 addresses alone")
    if _DIGITS_AND_DOTS.issuperset(host):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise NoAddressError("its host is no IPv4 address") from None
    if not _OF_HOSTS.issuperset(host):
        raise NoAddressError(
            "its host has more than letters, digits, dots, hyphens and underscores: clients differ in what they"
            " make of a name in another script, so give its xn-- form"
        )
    if len(host) > MAX_HOST_CHARS:
        raise NoAddressError(f"its host has more than {MAX_HOST_CHARS} characters")
    if not all(1 <= len(label) <= MAX_LABEL_CHARS for label in host.removesuffix(".").split(".")):
        why = f"its host has an empty part between dots, or one of more than {MAX_LABEL_CHARS} characters"
        raise NoAddressError(why)
    return host.lower()
