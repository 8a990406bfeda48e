"""Replications that a cluster can provide, by numbers and by lists of racks."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from stele.domain.base import Rejection
from stele.domain.image import Image
from stele.domain.schema.model import Replication
from stele.domain.tablets.limits import ENFORCE_RACK_LIST, ON


class HasReplication(Protocol):
    """A command that requests a replication."""

    @property
    def replication(self) -> Mapping[str, int]: ...
    @property
    def racks(self) -> Mapping[str, tuple[str, ...]]: ...


def replication_for(
    image: Image, command: HasReplication, *, tablets: bool
) -> Replication | Rejection:
    """Return the replication that a command requests, or why the cluster cannot provide it.

    ``tablets`` tells whether the keyspace has tablets.
    """
    found = _said(command.replication, command.racks)
    if isinstance(found, Rejection):
        return found
    return _check_racks(image, found, tablets=tablets) or check_replication(image, found) or found


def _said(
    copies: Mapping[str, int], racks: Mapping[str, tuple[str, ...]]
) -> Replication | Rejection:
    """Return the replication in its normal form.

    Dcs of factor 0 have no replicas, as if they were not named. The number of listed racks is the
    dc's replication factor; their order has no meaning.
    """
    # Sorted, so that another order of the same racks is the same replication.
    lists = {dc: tuple(sorted(each)) for dc, each in racks.items() if each}
    for dc, each in sorted(lists.items()):
        twice = [rack for rack, count in Counter(each).items() if count > 1]
        if twice:
            return Rejection(
                "rack_named_twice",
                f"Rack '{twice[0][:80]}' of '{dc[:80]}' is named twice: each has one replica of a tablet.",
                "Name it once.",
                {"dc": dc, "rack": twice[0]},
            )
        if copies.get(dc, len(each)) != len(each):
            return Rejection(
                "bad_replication",
                f"Replication factor {copies[dc]} in '{dc[:80]}', but {len(each)} racks are named.",
                "Leave the number out: the racks say how many replicas there are.",
                {"dc": dc},
            )
    counts = {dc: rf for dc, rf in copies.items() if rf and dc not in lists}
    return Replication(counts | {dc: len(each) for dc, each in lists.items()}, lists)


def check_replication(image: Image, wanted: Replication) -> Rejection | None:
    """Require enough nodes in each dc for its replication factor, and a node in each listed rack.

    Nodes without tokens and nodes that are about to leave do not count. Without a list, replicas
    use all racks that exist. With fewer racks than replicas, some share a rack (``ring.strategy``).
    """
    if not wanted.copies or any(rf < 1 for rf in wanted.copies.values()):
        return Rejection(
            "bad_replication",
            "A keyspace needs a replication factor of at least 1 in at least one dc.",
            "For example {'dc1': 3}.",
        )
    going = image.requests.going()
    holding = [n for n in image.membership.holding().values() if n.node_id not in going]
    for dc, rf in sorted(wanted.copies.items()):
        here = Counter(node.rack for node in holding if node.dc == dc)
        nodes = here.total()
        unfilled = [rack for rack in wanted.racks.get(dc, ()) if not here[rack]]
        if unfilled:
            return _no_such_rack(dc, unfilled[0], sorted(here))
        if nodes < rf:
            hint = "Add nodes to that dc first, or lower the replication factor."
            if not nodes and any(n.dc == dc for n in image.membership.normal().values()):
                # A dc of zero-token nodes takes no replicas, so its factor must be 0.
                hint = f"Use {dc}=0: it has only zero-token nodes; or add nodes with tokens to it."
            return Rejection(
                "too_few_nodes",
                f"Replication factor {rf} in '{dc}' needs {rf} nodes with tokens that stay; "
                f"there are {nodes}.",
                hint,
                {"dc": dc, "replication_factor": str(rf), "nodes": str(nodes)},
            )
    return None


def _check_racks(image: Image, wanted: Replication, *, tablets: bool) -> Rejection | None:
    """Require that racks are listed only for tablets, and always if the setting enforces lists."""
    if not tablets:
        if not wanted.racks:
            return None
        return Rejection(
            "racks_need_tablets",
            "Racks are listed for keyspaces with tablets alone: the others are spread by the nodes' tokens.",
            "Say how many replicas each dc has; or make a keyspace with tablets.",
        )
    numbers = sorted(wanted.copies.keys() - wanted.racks.keys())
    if not numbers or ENFORCE_RACK_LIST.of(image.features.settings) != ON:
        return None
    return Rejection(
        "rack_list_required",
        f"Keyspaces with tablets name their racks, says {ENFORCE_RACK_LIST.name}; of '{numbers[0][:80]}' there"
        " is a number.",
        f"Name the racks that have a replica each, as in {numbers[0][:80]}=r1,r2,r3.",
        {"dc": numbers[0]},
    )


def _no_such_rack(dc: str, rack: str, racks: list[str]) -> Rejection:
    there = f"It has {', '.join(racks)}" if racks else "It has none"
    return Rejection(
        "no_room_in_rack",
        f"Rack '{rack[:80]}' of '{dc[:80]}' has no node with tokens that stays.",
        f"{there}: name one of these, or add a node to that rack first.",
        {"dc": dc, "rack": rack},
    )
