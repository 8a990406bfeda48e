"""Parsers of user input for commands: replication, durations, tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from stele.domain.commands import Join, Replace
from stele.domain.model.schema import Replication
from stele.runtime.answers.node import NodeView
from stele.words import GivenError

_PART: Final = re.compile(r"(\d{1,13}(?:\.\d{1,3})?)\s*(ms|s|m|h|d)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
SPAN_FORM: Final = "Write numbers with ms, s, m, h or d. For example 90s, 30m, 2h or 1d12h."
MOST_S: Final = 100 * 365 * 86_400
"""Longest duration: a century. Sums of times then stay within what clocks can show."""


def span_ms(text: str, option: str) -> int:
    """Return the milliseconds of ``90s``, ``1h30m`` or ``2 d``, at least one.

    ``option`` names the option in the message. Raises GivenError.
    """
    parts = _PART.findall(text)
    whole = "".join(match[0] for match in _PART.finditer(text))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or whole != text.lstrip() or not 0 < seconds <= MOST_S:
        raise GivenError(
            f"{option} '{text}' is not a span of time.",
            SPAN_FORM,
        )
    return max(1, round(1000 * seconds))


def tokens_of(text: str) -> tuple[int, ...]:
    """Return the tokens of ``1,-2,3``; none for an empty text. Raises GivenError."""
    try:
        return tuple(int(token) for token in text.split(",")) if text else ()
    except ValueError as error:
        raise GivenError(
            f"'{text}' is not a list of tokens.", "Whole numbers with commas: --tokens=-5,7"
        ) from error


def replication_of(given: Iterable[str]) -> Replication:
    """Parse ``("dc1=3,dc2=r1,r2",)``: by dc, the number of copies or the racks with one each.

    A number followed by a comma is a rack. Raises GivenError.
    """
    copies, racks = dict[str, int](), dict[str, tuple[str, ...]]()
    for dc, values in _by_dc(given):
        if dc in copies or dc in racks:
            raise GivenError(f"--replication names '{dc}' twice.", "Say once how many copies.")
        if len(values) == 1 and values[0].isdigit():
            copies[dc] = int(values[0])
        else:
            racks[dc] = tuple(filter(None, values))
    return Replication(copies, racks)


def _by_dc(given: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return each dc with the values between its ``=`` and the next dc."""
    found = list[tuple[str, list[str]]]()
    for text in given:
        named = len(found)
        for part in text.split(","):
            dc, separator, value = (each.strip() for each in part.partition("="))
            if separator and dc and value:
                found.append((dc, [value]))
            elif not separator and len(found) > named:
                found[-1][1].append(dc)
            else:
                raise GivenError(
                    f"--replication '{part}' is neither DC=COPIES nor DC=RACK,RACK.",
                    "For example dc1=3, or dc1=r1,r2,r3.",
                )
    return found


# Commands that take a running node into the cluster, built from the node's view of itself.


def join_of(node: NodeView) -> Join:
    """Return the Join of a node, with its own tokens."""
    return Join(num_tokens=node.num_tokens, **_itself(node))


def replace_of(
    node: NodeView, dead: str, ignore: tuple[str, ...] = (), *, force: bool = False
) -> Replace:
    """Return the Replace of ``dead`` by a node.

    A node that wants no tokens becomes a zero-token node.
    """
    return Replace(
        replaced_id=dead,
        ignore_nodes=ignore,
        force=force,
        zero_token=not node.num_tokens,
        **_itself(node),
    )


def _itself(node: NodeView) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "cluster": node.cluster,
        "address": node.address,
        "dc": node.dc,
        "rack": node.rack,
        "supported_features": node.supported_features,
        "release_version": node.release_version,
        "host_id": node.host_id,
        "shards": node.shards,
    }
