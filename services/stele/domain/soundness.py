"""Checks of a state that a person has edited, or that is to replace another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from stele.domain.base import Fact, Rejected, Rejection
from stele.domain.context import bad_name
from stele.domain.ddl.tables import bad_options
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.schema import Keyspace, SchemaImage, Table, placement_name
from stele.domain.model.schema_objects import TableSchema, TypeTextError, user_types_in
from stele.domain.model.transitions import Transition
from stele.domain.names import JOINING, OWNS_TOKENS, NodeState
from stele.domain.ring.placement import Placement, cover_flaws, replica_flaws, text_of
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, RangeReplicas
from stele.domain.ring.transition import equals_at_rest
from stele.domain.rules.ring import ring_now
from stele.domain.rules.schema import check_columns, in_order
from stele.domain.tablets.maps import MAX_TABLETS
from stele.domain.tablets.maps import range_of as tablet_range_of
from stele.domain.topology.operations.table import OPERATIONS


class Flaw(msgspec.Struct, frozen=True, order=True):
    """A flaw: ``place`` names the wrong row, ``what`` describes the error, for people."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def _words(refused: Rejection | None) -> Iterator[str]:
    """Yield the refusal of a name or of options as a flaw."""
    if refused is not None:
        yield f"{refused.message} {refused.hint}"


# Check for numbers that no record can hold. JSON has larger ones than the log's eight bytes.


LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1


def number_flaws(fact: Fact) -> Iterator[str]:
    """Yield the numbers of a fact that are too large. The fact is no row of a placement."""
    for number in _numbers_in(msgspec.to_builtins(fact, builtin_types=(bytes,))):
        if not LEAST <= number <= MOST:
            yield f"{type(fact).__name__} has the number {str(number)[:40]}, which does not fit in 8 bytes"


def _numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers_in(each)


# Checks of a placement's rows as a person may have written them: gaps, overlaps and replicas.


MOST_VERSION: Final = 1 << 62
"""Greatest version of the topology and of rows.

Later versions of the log, and of a cluster that begins with the state, continue above it.
"""
MOST_SHARD: Final = (1 << 31) - 1


def row_flaws(name: str, rows: Sequence[RangeReplicas]) -> Iterator[Flaw]:
    """Yield the flaws of rows in any order.

    Rows without a flaw form a placement (``Placement.of``).
    """
    for row in rows:
        place = place_of(name, row)
        yield from (Flaw(place, what) for what in (*replica_flaws(row), *_numbers(row)))
    for at, what in cover_flaws(rows):
        yield Flaw(f"placement {name}" if at is None else place_of(name, at), what)


def place_of(name: str, row: RangeReplicas) -> str:
    return f"placement {name}, range {text_of(row)}"


def _numbers(row: RangeReplicas) -> Iterator[str]:
    """Yield the numbers that do not fit into the columns of a placement."""
    versions = (row.version, row.version_before)
    if min(row.start, row.end) < MIN_TOKEN or max(row.start, row.end) > MAX_TOKEN:
        yield f"tokens are from {MIN_TOKEN} to {MAX_TOKEN}"
    if not 0 <= min(versions) <= max(versions) <= MOST_VERSION:
        yield f"its versions are not from 0 to {MOST_VERSION}"
    if max((*row.shards, *row.other_shards), default=0) > MOST_SHARD:
        yield f"its shards are not all up to {MOST_SHARD}"


# Checks of nodes: each name, address, host id and token belongs to one node.


def member_flaws(image: Image) -> Iterator[Flaw]:
    nodes = [image.membership.nodes[name] for name in sorted(image.membership.nodes)]
    there = [node for node in nodes if node.state is not NodeState.LEFT]
    for node in there:
        yield from (Flaw(f"node {node.node_id}", what) for what in _of_node(node, image.epoch))
    yield from _shared(there)


def _of_node(node: Node, epoch: int) -> Iterator[str]:
    for what, name in (("node", node.node_id), ("dc", node.dc), ("rack", node.rack)):
        yield from _words(bad_name(what, name))
    if len({*node.tokens}) != len(node.tokens):
        yield "it has a token twice"
    if any(not MIN_TOKEN < token <= MAX_TOKEN for token in node.tokens):
        yield f"its tokens are not all from {MIN_TOKEN + 1} to {MAX_TOKEN}"
    counts = (
        node.state is NodeState.NORMAL and not node.excluded
    )  # else another may have its tokens
    if counts and len(node.tokens) != node.num_tokens:
        yield f"it has {len(node.tokens)} tokens, and num_tokens says {node.num_tokens}"
    if node.shards < 1:
        yield f"it has {node.shards} shards"
    for what, since in (
        ("excluded", node.excluded_since),
        ("to be cleaned up", node.cleanup_since),
    ):
        if since > epoch:
            yield f"it is {what} since epoch {since}, which is to come"


def _shared(nodes: list[Node]) -> Iterator[Flaw]:
    """Yield the values that several nodes share.

    A node that replaces a dead one may have its address meanwhile.
    """
    owners = defaultdict[tuple[str, str], list[str]](list)
    for node in nodes:
        if node.host_id:
            owners["host id", node.host_id].append(node.node_id)
        if node.address and node.state not in JOINING and not node.excluded:
            owners["address", node.address].append(node.node_id)
        if node.state in OWNS_TOKENS:
            for token in {*node.tokens}:
                owners["token", str(token)].append(node.node_id)
    for (what, value), names in owners.items():
        if len(names) > 1:
            yield Flaw(f"node {names[-1]}", f"its {what} {value} is also that of {names[0]}")


# Check of the ring: at rest, its rows are those that the nodes' tokens give.
#
# Joins and leaves depend on it. Otherwise each would wait for ever for ranges that never match.


def ring_flaws(image: Image) -> Iterator[Flaw]:
    """Yield the flaws of a state that has no others.

    During transitions, rows are between two rings.
    """
    if image.topology.transitions:
        return
    for keyspace_id in sorted(image.schema.by_id):
        keyspace = image.schema.by_id[keyspace_id]
        wanted = "" if keyspace.tablets else placement_name(keyspace.replication)
        if keyspace.placement != wanted:
            yield Flaw(
                f"keyspace {keyspace.name} ({keyspace_id})",
                f"its placement is {keyspace.placement or '(none)'}, and by its replication it is"
                f" {wanted or '(none)'}",
            )
            return
    ring = ring_now(image)
    for name, replication in image.schema.replications().items():
        live, computed = image.ring.placements[name], ring.placement(replication)
        if not equals_at_rest(live, computed):
            yield _first_difference(name, live, computed)
    for table in image.schema.map_owners():
        for row in image.ring.placements[table.placement].rows:
            yield from (
                Flaw(place_of(table.placement, row), what) for what in _of_tablet(image, row)
            )


def _first_difference(name: str, live: Placement, computed: Placement) -> Flaw:
    wanted = {(row.start, row.end): row for row in computed.rows}
    for row in live.rows:
        by_tokens = wanted.get((row.start, row.end))
        if by_tokens is None:
            return Flaw(place_of(name, row), "the nodes' tokens do not make this range")
        if (row.reads, row.writes) != (by_tokens.reads, by_tokens.writes):
            return Flaw(
                place_of(name, row),
                f"it is read from {', '.join(row.reads) or 'nobody'} and written to"
                f" {', '.join(row.writes) or 'nobody'}, and by the nodes' tokens, dcs and racks it is"
                f" {', '.join(by_tokens.reads) or 'nobody'}'s",
            )
    return Flaw(f"placement {name}", "its rows are not those that the nodes' tokens give")


def _of_tablet(image: Image, row: RangeReplicas) -> Iterator[str]:
    if {*row.reads} != {*row.writes}:
        yield "it is not read from all who are written to, and nothing is under way"
    for node_id in row.writes:
        node = image.membership.nodes[node_id]
        if node.state is not NodeState.NORMAL or not node.tokens:
            yield f"node {node_id} is no member with tokens, and has a replica"


# Checks of columns, types, functions and aggregates: valid types, and no missing dependency.


def object_flaws(schema: SchemaImage) -> Iterator[Flaw]:
    for table_id in sorted(schema.schemas):
        table, columns = schema.tables[table_id], schema.schemas[table_id]
        place = f"columns of table {schema.full_name(table)} ({table_id})"
        yield from (Flaw(place, what) for what in _objects_of_table(schema, columns))
        texts = [column.type for column in columns.columns]
        yield from (Flaw(place, what) for what in _of_types(schema, table.keyspace_id, texts))
    for type_id in sorted(schema.types):
        user_type = schema.types[type_id]
        place = f"type {schema.full_type_name(user_type)} ({type_id})"
        texts = [field.type for field in user_type.fields]
        yield from (Flaw(place, what) for what in _of_types(schema, user_type.keyspace_id, texts))
    for function_id in sorted(schema.functions):
        function = schema.functions[function_id]
        place = f"function {schema.routine_name(function)} ({function_id})"
        texts = [*function.argument_types, function.return_type]
        yield from (Flaw(place, what) for what in _of_types(schema, function.keyspace_id, texts))
    for aggregate_id in sorted(schema.aggregates):
        aggregate = schema.aggregates[aggregate_id]
        place = f"aggregate {schema.routine_name(aggregate)} ({aggregate_id})"
        texts = [*aggregate.argument_types, aggregate.state_type]
        yield from (Flaw(place, what) for what in _of_types(schema, aggregate.keyspace_id, texts))
        for used in (aggregate.state_function_id, aggregate.final_function_id):
            if used and used not in schema.functions:
                yield Flaw(place, f"there is no function {used}, which it uses")


def _objects_of_table(schema: SchemaImage, columns: TableSchema) -> Iterator[str]:
    ids = [column.column_id for column in columns.columns]
    ids += [column.column_id for column in columns.dropped_columns]
    if len({*ids}) < len(ids) or max(ids, default=0) >= columns.next_column_id:
        yield "column ids are not unique, or not below next_column_id"
    if in_order(columns.columns) != columns.columns:
        yield "columns are not in the order partition key, clustering, static, regular"
    there = {column.column_id for column in columns.columns}
    for index in columns.indexes:
        if index.column_id not in there:
            yield f"index {index.name} is on column {index.column_id}, which does not exist"
    if columns.view is not None and columns.view.base_table_id not in schema.schemas:
        yield f"it is a view of table {columns.view.base_table_id}, which has no columns"
    try:
        check_columns(columns.table_id, columns.columns)
    except (Rejected, TypeTextError) as error:
        yield str(error)


def _of_types(schema: SchemaImage, keyspace_id: str, texts: Iterable[str]) -> Iterator[str]:
    keyspace = schema.by_id[keyspace_id].name
    for text in texts:
        try:
            unknown = sorted(
                name for name in user_types_in(text) if f"{keyspace}.{name}" not in schema.type_ids
            )
        except TypeTextError as error:
            yield str(error)
        else:
            yield from (f"there is no type {name}, which it uses" for name in unknown)


# Checks of keyspaces and tables: unique names, and placements for all data.


def schema_flaws(image: Image) -> Iterator[Flaw]:
    schema = image.schema
    for keyspace_id in sorted(schema.by_id):
        keyspace = schema.by_id[keyspace_id]
        place = f"keyspace {keyspace.name} ({keyspace_id})"
        yield from (Flaw(place, what) for what in _of_keyspace(image, keyspace))
    for table_id in sorted(schema.tables):
        table = schema.tables[table_id]
        place = f"table {schema.full_name(table)} ({table_id})"
        yield from (Flaw(place, what) for what in _of_table(image, table))
    yield from _names(image)
    yield from object_flaws(schema)
    used = {data.placement for data in schema.all_data()}
    for name in sorted({*image.ring.placements} - used):
        yield Flaw(f"placement {name}", "no keyspace and no table has it")


def _of_keyspace(image: Image, keyspace: Keyspace) -> Iterator[str]:
    yield from _words(bad_name("keyspace", keyspace.name, dots=False))
    if any(factor < 1 for factor in keyspace.replication.values()):
        yield f"its replication is {keyspace.replication}; leave out a dc that has no replicas"
    if not keyspace.replication:
        yield "it has no replicas in any dc"
    if not 0 <= keyspace.initial_tablets <= (MAX_TABLETS if keyspace.tablets else 0):
        yield f"initial_tablets is {keyspace.initial_tablets}; it is up to {MAX_TABLETS}, and 0 without tablets"
    for dc, racks in sorted(keyspace.racks.items()):
        copies = keyspace.replication.get(dc, 0)
        if len(racks) != copies:
            yield f"it names {len(racks)} racks in {dc}, where it has {copies} replicas"
    yield from _versions(image, keyspace)
    if keyspace.placed_version > image.topology.version:
        yield f"its placed_version {keyspace.placed_version} is above the topology's"
    if not keyspace.tablets and keyspace.placement not in image.ring.placements:
        yield f"there is no placement {keyspace.placement or '(none)'}"


def _of_table(image: Image, table: Table) -> Iterator[str]:
    yield from _words(bad_name("table", table.name, dots=False))
    yield from _versions(image, table)
    yield from _words(bad_options(table.options))
    keyspace = image.schema.by_id[table.keyspace_id]
    if keyspace.tablets != bool(table.placement):
        has = "a" if table.placement else "no"
        yield f"it has {has} tablet map, and its keyspace says tablets: {keyspace.tablets}"
    if not table.placement:
        return
    placement = image.ring.placements.get(table.placement)
    if placement is None:
        yield f"there is no placement {table.placement}"
    elif not _is_tablet_map(placement):
        yield f"placement {table.placement} is no tablet map: its rows do not divide the ring evenly"
    base = image.schema.tables.get(table.base_table_id)
    if table.base_table_id and (base is None or base.keyspace_id != table.keyspace_id):
        yield f"there is no table {table.base_table_id} in its keyspace, with which it is co-located"
    elif base is not None and base.base_table_id:
        yield f"it is co-located with {base.name}, which has no tablet map"


def _versions(image: Image, owner: Keyspace | Table) -> Iterator[str]:
    for name in ("dropped_version", "truncated_version"):
        version = getattr(owner, name)
        if version > image.topology.version:
            yield f"its {name} {version} is above the topology's version {image.topology.version}"


def _is_tablet_map(placement: Placement) -> bool:
    count = len(placement)
    # A tablet map has a power of two ranges of equal size.
    if count & (count - 1) or count > MAX_TABLETS:
        return False
    ends = (row.end for row in placement.rows)
    return all(end == tablet_range_of(count, tablet).end for tablet, end in enumerate(ends))


def _names(image: Image) -> Iterator[Flaw]:
    ids = defaultdict[str, list[str]](list)
    for keyspace in image.schema.by_id.values():
        ids[f"keyspace {keyspace.name}"].append(keyspace.keyspace_id)
    for table in image.schema.tables.values():
        ids[f"table {image.schema.full_name(table)}"].append(table.table_id)
    for name, found in ids.items():
        if len(found) > 1:
            yield Flaw(name, f"several have this name: {', '.join(sorted(found))}")


# Checks of placements: every replica is an existing node, and no range is without one.


def placement_flaws(image: Image) -> Iterator[Flaw]:
    for name in sorted(image.ring.placements):
        for row in image.ring.placements[name].rows:
            yield from (Flaw(place_of(name, row), what) for what in _of_row(image, row))


def _of_row(image: Image, row: RangeReplicas) -> Iterator[str]:
    for node_id in sorted({*row.writes}):
        node = image.node(node_id)
        if node is None:
            yield f"there is no node {node_id}"
        elif node.state is NodeState.LEFT:
            yield f"node {node_id} has left"
        elif any(shard >= node.shards for shard in row.shards_of(node_id)):
            yield f"node {node_id} has {node.shards} shards, and a replica on {max(row.shards_of(node_id))}"
    if row.version > image.topology.version or row.version_before > row.version:
        yield (
            f"its versions {row.version_before} and {row.version} are not in order below the topology's"
            f" version {image.topology.version}"
        )


def reader_flaws(image: Image) -> Iterator[Flaw]:
    """Yield the ranges without readers, although a dc of the replication has nodes with tokens."""
    dcs = {node.dc for node in image.membership.holding().values()}
    for name, replication in sorted(_replications(image).items()):
        placement = image.ring.placements.get(name)
        # Without nodes that could hold replicas, a range has none, and that is no flaw.
        if placement is None or not dcs.intersection(dc for dc, rf in replication.items() if rf):
            continue
        for row in placement.rows:
            if not row.reads:
                yield Flaw(place_of(name, row), "nobody serves its reads")


def _replications(image: Image) -> dict[str, dict[str, int]]:
    schema = image.schema
    of_tables = {
        table.placement: schema.by_id[table.keyspace_id].replication
        for table in schema.with_tablets()
    }
    return {**schema.replications(), **of_tables}


# Checks of work under way: the order of versions, and the rows that transitions and requests name.


AT_REST: Final = frozenset({NodeState.NORMAL, NodeState.LEFT, NodeState.NONE})


def version_flaws(image: Image) -> Iterator[Flaw]:
    topology = image.topology
    if not 1 <= topology.fence_version <= topology.version:
        what = f"the fence is at version {topology.fence_version}, and the topology at {topology.version}"
        yield Flaw("topology", what)
    if topology.version > MOST_VERSION:
        yield Flaw("topology", f"its version {topology.version} is above {MOST_VERSION}")
    if max(topology.since_epoch, topology.fence_epoch) > image.epoch:
        yield Flaw("topology", f"its epochs are after epoch {image.epoch}, which this state is of")


def transition_flaws(image: Image) -> Iterator[Flaw]:
    sessions = dict[str, str]()
    for each in image.topology.open():
        place = f"transition {each.transition_id} ({each.kind})"
        yield from (Flaw(place, what) for what in _of_transition(image, each))
        # A session belongs to one transition. If two shared it, closing one would not stop its
        # work.
        if each.session and each.session in sessions:
            what = f"its session {each.session} is also that of {sessions[each.session]}"
            yield Flaw(place, what)
        sessions[each.session] = each.transition_id
    carried = {id_ for each in image.topology.open() for id_ in each.request_ids()}
    for request in image.requests.unfinished():
        place = f"request {request.request_id} ({request.kind})"
        gone = sorted(node for node in request.nodes() if image.node(node) is None)
        if gone:
            yield Flaw(place, f"there is no node {', '.join(gone)}")
        if request.table_id and request.table_id not in image.schema.tables:
            yield Flaw(place, f"there is no table {request.table_id}")
        if request.keyspace_id and request.keyspace_id not in image.schema.by_id:
            yield Flaw(place, f"there is no keyspace {request.keyspace_id}")
    for id_ in sorted(carried - {*image.requests.unfinished_by_id}):
        yield Flaw(
            f"request {id_}", "a transition carries it out, and it is not there or has ended"
        )


def _of_transition(image: Image, each: Transition) -> Iterator[str]:
    if each.state not in OPERATIONS[each.kind].states:
        yield f"{each.kind} has no state {each.state}"
    if each.entered_version > image.topology.version:
        yield f"it was entered at version {each.entered_version}, which is to come"
    for subject in each.subjects:
        node = image.node(subject.node_id)
        if node is None or node.state is NodeState.LEFT:
            yield f"there is no node {subject.node_id}, which it is about"
    if each.table_id and each.table_id not in image.schema.tables:
        yield f"there is no table {each.table_id}"
    if each.keyspace_id and each.keyspace_id not in image.schema.by_id:
        yield f"there is no keyspace {each.keyspace_id}"
    for name, plan in sorted(each.plans.items()):
        if name not in image.ring.placements:
            yield f"there is no placement {name}, which it plans for"
        named = {node for row in plan.rows for node in (*row.old, *row.new)}
        unknown = sorted(node for node in named if image.node(node) is None)
        if unknown:
            yield f"its plan for {name} names {', '.join(unknown)}, which are no nodes"


def under_way(image: Image) -> Iterator[Flaw]:
    """Yield all that is under way.

    A state that replaces another must have none: no process works for it.
    """
    for each in image.topology.open():
        yield Flaw(f"transition {each.transition_id} ({each.kind})", "it is under way")
    for node_id in sorted(image.membership.nodes):
        node = image.membership.nodes[node_id]
        if node.state not in AT_REST:
            yield Flaw(f"node {node_id}", f"it is {node.state}, and not {NodeState.NORMAL}")
    for data in image.schema.all_data():
        if data.dropped_version:
            yield Flaw(f"data of {data.name}", "it is being dropped")


# All flaws of an image: one loop over the checks above.


_CHECKS: Final[tuple[Callable[[Image], Iterator[Flaw]], ...]] = (
    version_flaws,
    member_flaws,
    schema_flaws,
    placement_flaws,
    reader_flaws,
    transition_flaws,
)


def flaws_of(image: Image) -> Iterator[Flaw]:
    """Yield the flaws of a state, in the order of ``_CHECKS``.

    A state that the log has made has none.

    The ring is checked last, and only if there are no other flaws.
    """
    sound = True
    for check in _CHECKS:
        for flaw in check(image):
            sound = False
            yield flaw
    # The check of the ring computes placements, for which members and schema must be sound.
    if sound:
        yield from ring_flaws(image)
