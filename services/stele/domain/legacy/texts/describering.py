"""``nodetool describering KEYSPACE``: the replicas of every range, as the cluster itself has them."""

import re
from typing import Final

import msgspec

from stele.domain.legacy.description import Answer
from stele.domain.legacy.texts.lines import (
    TextError,
    addresses_of,
    not_understood,
    numbered,
    token_of,
    uuid_of,
)

_VERSION: Final = re.compile(r"Schema Version: ?(\S+)")
_DETAIL: Final = r"EndpointDetails\(host:\S+, datacenter:\S+, rack:\S+\)"
_RANGE: Final = re.compile(
    r"TokenRange\(start_token:(-?\d+), end_token:(-?\d+), endpoints:\[([^\]]*)\],"
    rf" rpc_endpoints:\[[^\]]*\], endpoint_details:\[(?:{_DETAIL}(?:, {_DETAIL})*)?\]\)"
)


class Describering(msgspec.Struct, frozen=True):
    schema_version: str
    answers: tuple[Answer, ...]


def parse_describering(text: str) -> Describering:
    """Raises TextError."""
    version, headed = "", False
    answers: list[Answer] = []
    for number, line in numbered(text):
        bare = line.strip()
        if not version:
            found = _VERSION.fullmatch(bare)
            if found is None:
                raise not_understood(number, line, "`Schema Version:<uuid>` as the first line")
            version = uuid_of(number, found[1])
        elif bare == "TokenRange:" and not headed:
            headed = True
        else:
            answers.append(_answer(number, bare))
    if not answers:
        raise TextError(0, "it has no range; it should be what `nodetool describering` prints")
    return Describering(version, tuple(answers))


def _answer(number: int, line: str) -> Answer:
    found = _RANGE.fullmatch(line)
    if found is None:
        raise not_understood(number, line, "a whole TokenRange(…) on one line")
    start, end, endpoints = found.groups()
    return Answer(token_of(number, start), token_of(number, end), addresses_of(number, endpoints))
