"""A legacy cluster taken over: the state that it becomes, or all that stands against it."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from stele.domain.image import Image
from stele.domain.legacy.agreement import Difference, differences
from stele.domain.legacy.checks import problems
from stele.domain.legacy.description import LOCAL, Legacy, Problem
from stele.domain.legacy.replication import replication_of
from stele.domain.legacy.state import state_of

COMPARE: Final = "Give what `nodetool describering {0}` prints as --describering {0}=FILE."


class Imported(NamedTuple):
    """``image`` is None where there are problems. ``left_out`` are keyspaces that are not part of it, and
    ``compared`` says of how many ranges each of the others was compared.
    """

    image: Image | None
    problems: tuple[Problem, ...]
    differences: tuple[Difference, ...]
    left_out: tuple[str, ...]
    compared: dict[str, int]

    @property
    def refused(self) -> bool:
        return bool(self.problems or self.differences)


def imported(
    legacy: Legacy, *, ignored: Collection[str] = (), without: Collection[str] = ()
) -> Imported:
    """``without`` are keyspaces that are left out, besides those that every node has for itself alone.

    Replicas are compared as soon as there is a ring to compute them on: tokens that are nobody's twice.
    """
    found = [*problems(legacy, ignored), *_unknown(legacy, without)]
    left_out, wanted = list[str](), dict[str, dict[str, int]]()
    for keyspace in legacy.keyspaces:
        if keyspace.strategy == LOCAL or keyspace.name in without:
            left_out.append(keyspace.name)
            continue
        replication = replication_of(legacy, keyspace)
        if isinstance(replication, Problem):
            found.append(replication)
            continue
        wanted[keyspace.name] = replication
        if keyspace.name not in legacy.answers:
            what = "nothing says which replicas its ranges have"
            remedy = COMPARE.format(keyspace.name)
            found.append(Problem(f"keyspace {keyspace.name}", what, remedy))
    ring = _without_joining(legacy)
    image = state_of(ring, wanted) if _is_ring(ring) else None
    apart = () if image is None else tuple(_compared(legacy, image, wanted))
    return Imported(
        image=None if found or apart else image,
        problems=tuple(found),
        differences=apart,
        left_out=tuple(sorted(left_out)),
        compared={name: len(legacy.answers.get(name, ())) for name in sorted(wanted)},
    )


def _unknown(legacy: Legacy, without: Collection[str]) -> Iterator[Problem]:
    known = {keyspace.name for keyspace in legacy.keyspaces}
    if not known:
        what = "nothing tells of keyspaces"
        yield Problem(
            "schema", what, "Give the rows of system_schema.keyspaces with --schema FILE."
        )
    for name in sorted({*without} - known):
        yield Problem(f"--without {name}", "there is no such keyspace", "Leave it out.")
    for name in sorted({*legacy.answers} - known):
        yield Problem(f"--describering {name}", "there is no such keyspace", "Check its name.")


def _without_joining(legacy: Legacy) -> Legacy:
    """As it stands: nobody reads from who is joining, which is a problem of its own."""
    nodes = tuple(node for node in legacy.nodes if not node.status.endswith("J"))
    return msgspec.structs.replace(legacy, nodes=nodes)


def _is_ring(legacy: Legacy) -> bool:
    tokens = [token for node in legacy.nodes for token in node.tokens]
    hosts = {node.host_id for node in legacy.nodes}
    return bool(tokens) and len({*tokens}) == len(tokens) and len(hosts) == len(legacy.nodes)


def _compared(
    legacy: Legacy, image: Image, wanted: dict[str, dict[str, int]]
) -> Iterator[Difference]:
    for name in sorted(wanted.keys() & legacy.answers.keys()):
        placement = image.placement_of(name)
        assert placement is not None
        yield from differences(name, legacy.answers[name], placement, legacy.nodes)
