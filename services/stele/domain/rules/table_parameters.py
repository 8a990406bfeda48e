"""Parameters of tables and views as CQL sets them, and the check that ends a decision."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from stele.domain.base import Rejected, Rejection

# Parameters of tables and views, with the values that they accept (Cassandra's ``TableParams``).


MAX_TTL_S: Final = 20 * 365 * 24 * 60 * 60
"""Longest ``default_time_to_live`` (Cassandra's ``Attributes.MAX_TTL``)."""
MAX_INT: Final = 2**31 - 1
MIN_CDC_TTL_S: Final = 60
CDC: Final = "cdc"
DEFAULT_TTL: Final = "default_time_to_live"
GC_GRACE: Final = "gc_grace_seconds"
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_FRACTION: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?([eE]-?[0-9]{1,2})?")
MAX_NESTING: Final = 16
_SIMPLE_LITERAL: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")+"|0[xX][0-9a-fA-F]*(?!\w)|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"""
    r"|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z]\w*",
    re.ASCII,
)
"""A text, quoted name, blob, UUID, number or word."""
_COLLECTION: Final = re.compile(
    r"\((?:x(?:,x)*)?\)|\[(?:x(?:,x)*)?\]|\{(?:x(?::x)?(?:,x(?::x)?)*)?\}"
)
"""A collection of literals, which are x."""
_RETRY: Final = re.compile(r"(?i)always|none|never|[0-9.]{1,8}(p|percentile|ms)")
_MAP_ENTRY: Final = re.compile(
    r"\s*'((?:[^']|'')*)'\s*:\s*(?:'((?:[^']|'')*)'|([A-Za-z0-9_.+-]+))\s*(,|$)"
)
MAX_TEXT_CHARS: Final = 65_536

Check = Callable[[str, str], str]
"""A function from a parameter's name and value to its canonical value. Raises Rejected."""


def changed_parameters(before: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are set after a change, sorted by name.

    An empty value sets a parameter back to its default. Raises Rejected.
    """
    after = dict(before)
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            raise Rejected(
                "unknown_parameter",
                f"Tables have no parameter '{name[:80]}'.",
                f"Parameters are {', '.join(sorted(_CHECKS))}.",
            )
        if value == "":
            after.pop(name, None)
        else:
            after[name] = check(name, value)
    _check_intervals(after)
    return dict(sorted(after.items()))


def cdc_option(value: str) -> str | Rejection:
    """Return the canonical form of ``cdc`` for a table without columns; '' stays ''."""
    try:
        return _cdc(CDC, value) if value else ""
    except Rejected as error:
        return error.rejection


def map_literal(entries: Mapping[str, str]) -> str:
    """Return a map of texts as a CQL literal, sorted by key."""
    inner = ", ".join(
        f"{text_literal(key)}: {text_literal(entries[key])}" for key in sorted(entries)
    )
    return "{" + inner + "}"


def is_literal(text: str) -> bool:
    """Return whether the text is one CQL literal, with collections nested up to ``MAX_NESTING`` deep."""
    shape = re.sub(r"\s+", "", _SIMPLE_LITERAL.sub("x", text))
    for _ in range(MAX_NESTING):
        shape = _COLLECTION.sub("x", shape)
    return shape == "x"


def map_entries(literal: str) -> dict[str, str] | None:
    """Return the entries of a CQL map literal of texts, or None for any other text."""
    text = literal.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    text, at, found = text[1:-1].strip(), 0, dict[str, str]()
    while at < len(text):
        entry = _MAP_ENTRY.match(text, at)
        if entry is None:
            return None
        key, quoted, plain, _ = entry.groups()
        found[key.replace("''", "'")] = plain if quoted is None else quoted.replace("''", "'")
        at = entry.end()
    return found


def text_literal(value: str) -> str:
    """Return a text as a CQL string."""
    return "'" + value.replace("'", "''") + "'"


def _bad(name: str, value: str, wanted: str) -> Rejected:
    return Rejected("bad_parameter", f"{name} is '{value[:80]}'.", f"Use {wanted}.", parameter=name)


def _any_text(name: str, value: str) -> str:
    if len(value) > MAX_TEXT_CHARS:
        raise _bad(name, value, f"at most {MAX_TEXT_CHARS} characters")
    return value


def _whole(least: int, most: int) -> Check:
    def check(name: str, value: str) -> str:
        if not _NUMBER.fullmatch(value) or not least <= int(value) <= most:
            raise _bad(name, value, f"a whole number from {least} to {most}")
        return str(int(value))

    return check


def _fraction(*, or_zero: bool) -> Check:
    def check(name: str, value: str) -> str:
        number = float(value) if _FRACTION.fullmatch(value) else math.nan
        if not (0 <= number <= 1 if or_zero else 0 < number <= 1):
            raise _bad(name, value, "a number from 0 to 1")
        return repr(number)

    return check


def _matching(pattern: re.Pattern[str], wanted: str) -> Check:
    def check(name: str, value: str) -> str:
        if not pattern.fullmatch(value):
            raise _bad(name, value, wanted)
        return value

    return check


def _map(*required: str) -> Check:
    def check(name: str, value: str) -> str:
        entries = map_entries(value)
        if entries is None:
            raise _bad(
                name, value, "a map of texts, such as {'class': 'SizeTieredCompactionStrategy'}"
            )
        missing = [key for key in required if key not in entries]
        if missing:
            raise _bad(name, value, f"a map with the entry '{missing[0]}'")
        return map_literal(entries)

    return check


def _cdc(name: str, value: str) -> str:
    """Accept a map as ScyllaDB has it, or true and false as Cassandra has it."""
    if value.lower() in ("true", "false"):
        return map_literal({"enabled": value.lower()})
    entries = map_entries(value)
    known = {"enabled", "preimage", "postimage", "delta", "ttl"}
    if entries is None or not known.issuperset(entries):
        raise _bad(
            name, value, f"a map with entries of {', '.join(sorted(known))}; or true or false"
        )
    if entries.get("enabled", "true") not in ("true", "false"):
        raise _bad(name, value, "true or false for 'enabled'")
    if entries.get("preimage", "false") not in ("true", "false", "full"):
        raise _bad(name, value, "true, false or full for 'preimage'")
    if entries.get("ttl", "0") != "0":
        # Changes are returned only after the confidence window, and then a reader needs some time.
        entries["ttl"] = _whole(MIN_CDC_TTL_S, MAX_TTL_S)("ttl of cdc", entries["ttl"])
    return map_literal(entries)


_CHECKS: Final[dict[str, Check]] = {
    "additional_write_policy": _matching(_RETRY, "99p, 50ms, ALWAYS or NEVER"),
    "bloom_filter_fp_chance": _fraction(or_zero=False),
    "caching": _map(),
    CDC: _cdc,
    "comment": _any_text,
    "compaction": _map("class"),
    "compression": _map(),
    "crc_check_chance": _fraction(or_zero=True),
    DEFAULT_TTL: _whole(0, MAX_TTL_S),
    GC_GRACE: _whole(0, MAX_INT),
    "max_index_interval": _whole(1, MAX_INT),
    "memtable_flush_period_in_ms": _whole(0, MAX_INT),
    "min_index_interval": _whole(1, MAX_INT),
    "read_repair": _matching(re.compile("(?i)blocking|none"), "BLOCKING or NONE"),
    "speculative_retry": _matching(_RETRY, "99p, 50ms, ALWAYS or NONE"),
}
_INTERVALS: Final = {"min_index_interval": 128, "max_index_interval": 2048}
"""Defaults of the parameters that limit each other."""


def _check_intervals(parameters: Mapping[str, str]) -> None:
    least, most = (int(parameters.get(name, value)) for name, value in _INTERVALS.items())
    if least > most:
        raise Rejected(
            "bad_parameter",
            f"min_index_interval {least} is above max_index_interval {most}.",
            "Raise the one, or lower the other.",
        )
