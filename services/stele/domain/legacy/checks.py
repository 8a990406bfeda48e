"""What stands against taking a legacy cluster over: all of it, each with what to do."""

from collections.abc import Collection, Iterator
from typing import Final

from stele.domain.context import bad_name
from stele.domain.legacy.description import (
    DOWN_AND_NORMAL,
    MURMUR3,
    UP_AND_NORMAL,
    Legacy,
    LegacyNode,
    Problem,
)
from stele.domain.ring.tokens import MIN_TOKEN

_PENDING: Final = {
    "J": ("it is joining", "Wait until it has joined, or stop it and remove it."),
    "L": ("it is leaving", "Wait until it has left."),
    "M": ("it is moving", "Wait until it has moved."),
}


def problems(legacy: Legacy, ignored: Collection[str] = ()) -> Iterator[Problem]:
    """``ignored`` are addresses or host ids of nodes that may be down: they are members all the same
    (CEP-21, ``initialize --ignore``).
    """
    if legacy.partitioner != MURMUR3:
        yield Problem(
            "cluster",
            f"its partitioner is {legacy.partitioner}; tokens here are Murmur3's",
            "Copy the data into a cluster with Murmur3Partitioner.",
        )
    known = {name for node in legacy.nodes for name in (node.address, node.host_id)}
    for name in sorted({*ignored} - known):
        yield Problem(f"--ignore {name}", "there is no such node", "Name an address or a host id.")
    yield from _doubles(legacy)
    for node in legacy.nodes:
        yield from _of_node(node, bool({node.address, node.host_id} & {*ignored}))
    yield from _schema(legacy, ignored)


def _doubles(legacy: Legacy) -> Iterator[Problem]:
    """Host ids, addresses and tokens have one node each."""
    owners = dict[tuple[str, str], list[str]]()
    for node in legacy.nodes:
        owners.setdefault(("host id", node.host_id), []).append(node.address)
        owners.setdefault(("address", node.address), []).append(node.address)
        for token in node.tokens:
            owners.setdefault(("token", str(token)), []).append(node.address)
    for (what, value), addresses in owners.items():
        if len(addresses) > 1:
            yield Problem(
                f"{what} {value}",
                f"{' and '.join(addresses)} have it",
                "Find out which of them is right, and decommission or remove the other.",
            )


def _of_node(node: LegacyNode, may_be_down: bool) -> Iterator[Problem]:
    place = f"node {node.address}"
    pending = _PENDING.get(node.status[1:])
    for what, name in (("dc", node.dc), ("rack", node.rack)):
        refused = bad_name(what, name)
        if refused is not None and pending is None:
            yield Problem(place, refused.message.rstrip("."), refused.hint)
    if pending is not None:
        yield Problem(place, f"{pending[0]} ({node.status})", pending[1])
    elif node.status == DOWN_AND_NORMAL:
        if not may_be_down:
            what = "it is down (DN)"
            yield Problem(place, what, f"Start it, remove it, or say --ignore {node.address}.")
    elif node.status != UP_AND_NORMAL:
        what = f"its state is not known ({node.status})"
        yield Problem(place, what, "Take the status from a node that knows it.")
    if not node.tokens and pending is None:
        yield Problem(place, "it has no tokens", "Decommission or remove it first.")
    if MIN_TOKEN in node.tokens:
        what = f"its token {MIN_TOKEN} is the ring's lower bound, which is nobody's token here"
        yield Problem(place, what, f"Move it by one first: `nodetool move -- {MIN_TOKEN + 1}`.")


def _schema(legacy: Legacy, ignored: Collection[str]) -> Iterator[Problem]:
    addresses = {n.address for n in legacy.nodes if {n.address, n.host_id} & {*ignored}}
    versions = {v: hosts for v, hosts in legacy.schema_versions.items() if {*hosts} - addresses}
    if len(versions) > 1:
        each = "; ".join(f"{v} on {', '.join(hosts)}" for v, hosts in sorted(versions.items()))
        what = f"there are {len(versions)} schema versions: {each}"
        yield Problem("schema", what, "Wait until they agree (`nodetool describecluster`).")
    if not versions:
        yield Problem("schema", "no node tells of its version", "Take describecluster anew.")
    lost = sorted({*legacy.unreachable} - addresses)
    if lost:
        what = f"the versions of {', '.join(lost)} are not known"
        yield Problem("schema", what, "Start them, or name them with --ignore if they are down.")
