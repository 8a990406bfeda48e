"""Planted bugs of overrides and of clusters that begin with a dump; tests find them."""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.membership import hosts
from stele.domain.membership.facts import Node
from stele.domain.overrides import decide, first, loss, replace, rows, schema
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.schema.facts import SchemaImage, Table
from stele.domain.topology.heads import Versions
from stele.sim.patching import Patch

changed = msgspec.structs.replace


def override_keeps_the_fence(patch: Patch) -> None:
    """An override's version is not fenced: late requests of older ones go on by the rows of before."""

    def unfenced(version: int, epoch: int) -> Versions:
        return Versions(
            version=version, fence_version=version - 1, since_epoch=epoch, fence_epoch=epoch
        )

    patch.function(first.rest_at, unfenced)


def override_keeps_versions_of_rows(patch: Patch) -> None:
    """Rows come back with the versions that they had then, so old requests are as good as new ones."""

    def as_it_was(row: RangeReplicas, version: int) -> RangeReplicas:
        return row

    patch.function(rows._at, as_it_was)  # noqa: SLF001


def override_takes_ids_again(patch: Patch) -> None:
    """What was dropped comes back under its old id, by which nodes have deleted and may yet delete."""
    plain = schema.renamed

    def same_ids(context: Context, target: Image) -> schema.Renamed | Rejection:
        everything = changed(context.image, schema=target.schema)
        return plain(context._replace(image=everything), target)

    patch.function(plain, same_ids)


def override_undoes_truncation(patch: Patch) -> None:
    """A table has the data id of before its truncation again."""
    plain = schema._table  # noqa: SLF001

    def untruncated(before: SchemaImage, table: Table, ids: dict[str, str]) -> Table:
        return changed(plain(before, table, ids), truncated_version=table.truncated_version)

    patch.function(plain, untruncated)


def override_brings_nodes_back(patch: Patch) -> None:
    """A node that has left is a member again, with whatever it has on its disk."""

    def anybody(before: Image, target: Image) -> Rejection | None:
        return None

    def back(now: Node, wanted: Node | None) -> Node:
        return now.gone() if wanted is None else changed(now, state=wanted.state)

    patch.function(replace._check_nodes, anybody)  # noqa: SLF001
    patch.function(replace._node, back)  # noqa: SLF001


def override_counts_no_readers(patch: Patch) -> None:
    """A range is taken for safe whoever reads it now and did before."""

    def some(row: RangeReplicas) -> set[tuple[str, int]]:
        return set()

    patch.function(loss._readers, some)  # noqa: SLF001


def override_of_an_open_log(patch: Patch) -> None:
    """The state is replaced while everybody goes on changing it."""

    def always(context: Context) -> Rejection | None:
        return None

    patch.function(decide._check_alone, always)  # noqa: SLF001


def override_leaves_transitions(patch: Patch) -> None:
    """What is under way stays so in a state that knows nothing of it, sessions and all."""

    def nothing(draft: object) -> None:
        return None

    patch.function(replace._end_what_is_under_way, nothing)  # noqa: SLF001


def place_is_taken_by_anybody(patch: Patch) -> None:
    """The first folder with a node's name has its place in a cluster that began with a dump."""
    plain = hosts.may_take

    def first_come(place: str, host_id: str, claims: str = "") -> bool:
        return hosts.is_unclaimed(place) or plain(place, host_id, claims)

    patch.function(plain, first_come)


def place_is_claimed_again(patch: Patch) -> None:
    """An empty folder takes the place of a member by its host id, whenever it claims it."""
    plain = hosts.may_take

    def again(place: str, host_id: str, claims: str = "") -> bool:
        return plain(place, host_id, claims) or (bool(claims) and place == claims)

    patch.function(plain, again)


OVERRIDE_TEST_MUTANTS: Final = (
    override_keeps_the_fence,
    override_keeps_versions_of_rows,
    override_takes_ids_again,
    override_undoes_truncation,
    override_brings_nodes_back,
    override_counts_no_readers,
    override_of_an_open_log,
    override_leaves_transitions,
    place_is_taken_by_anybody,
    place_is_claimed_again,
)
