"""NetworkTopologyStrategy as the plain walk up the ring that it is defined by.

``strategy`` finds the same with whole arrays; it takes this one for rings on which that would be slow,
and the tests hold it against this one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec


class DcRule(msgspec.Struct, frozen=True):
    """How many replicas a dc takes at most, and how often one may stand in a rack that has one."""

    replicas: int
    acceptable_rack_repeats: int


def walk(owners: Sequence[int], racks: Sequence[int], rule: DcRule) -> list[list[int]]:
    """The positions of the tokens at which a walk from each token of one dc finds its replicas.

    ``owners`` and ``racks`` are those of the dc's tokens in ring order. A position that comes after a
    turn around the ring is higher by the number of tokens.

    Going down the ring twice, a node that is met moves to the front: so the nodes always stand in the
    order in which a walk up from here meets them, and no walk has to pass token by token.
    """
    count = len(owners)
    ahead: OrderedDict[int, None] = OrderedDict()
    rack_of = dict(zip(owners, racks, strict=True))
    met_at: dict[int, int] = {}
    found = list[list[int]]()
    for position in reversed(range(2 * count)):
        node = owners[position % count]
        met_at[node] = position
        ahead[node] = None
        ahead.move_to_end(node, last=False)
        if position < count:
            found.append([met_at[node] for node in _choose(ahead, rack_of, rule)])
    found.reverse()
    return found


def _choose(nodes: Iterable[int], rack_of: dict[int, int], rule: DcRule) -> list[int]:
    """The nodes that a walk takes, meeting them in the order given."""
    chosen: list[int] = []
    racks = set[int]()
    repeats_left = rule.acceptable_rack_repeats
    for node in nodes:
        rack = rack_of[node]
        if rack not in racks:
            racks.add(rack)
        elif repeats_left > 0:
            repeats_left -= 1
        else:
            continue
        chosen.append(node)
        if len(chosen) == rule.replicas:
            break
    return chosen
