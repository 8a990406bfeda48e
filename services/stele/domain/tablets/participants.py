"""The replicas that take part in a repair of named nodes or dcs."""

from collections.abc import Iterable

import numpy as np

from stele.domain.base import Rejection
from stele.domain.context import unknown_node
from stele.domain.image import Image
from stele.domain.requests.model import Among
from stele.domain.ring.placement import Placement

ENOUGH = 2
"""Least number of replicas in a repair: a single replica has no other one to compare with."""


def participants(image: Image, among: Among, replicas: Iterable[str]) -> list[str]:
    """Return the replicas that are named and not excluded."""
    nodes, excluded = image.membership.nodes, image.membership.excluded()
    return [n for n in replicas if n not in excluded and among.has(n, nodes[n].dc)]


def check_among(image: Image, among: Among, placement: Placement) -> Rejection | None:
    """Require that the named nodes and dcs exist, and that some tablet has two replicas on them."""
    if not any(among):
        return None
    unknown = sorted({*among.nodes} - {*image.membership.nodes})
    if unknown:
        return unknown_node(unknown[0][:80])
    dcs = {node.dc for node in image.membership.taking_part().values()}
    strange = sorted({*among.dcs} - dcs)
    if strange:
        return Rejection(
            "unknown_dc",
            f"There is no dc '{strange[0][:80]}'.",
            f"Name some of {', '.join(sorted(dcs))}.",
            {"dc": strange[0]},
        )
    names = placement.nodes.names
    here = {*participants(image, among, (n for n in names if n in image.membership.nodes))}
    mask = np.array([*(name in here for name in names), False])
    if (mask[placement.reads()].sum(axis=1) >= ENOUGH).any():
        return None
    return Rejection(
        "too_few_take_part",
        f"No tablet has two replicas{among.words().replace(' among replicas', '')} that are not dead for good.",
        "Name more nodes, or dcs: replicas are compared with one another.",
    )
