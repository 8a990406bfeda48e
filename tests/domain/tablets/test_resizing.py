"""Splits and merges of tables always reach an end and never alternate."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import Proposal, proposal
from stele.domain.balancer.resizing import MOST_AT_ONCE, Needs, TableLoad, next_counts, sizing
from stele.domain.commands import AlterTable, CreateTable, Envelope, ResizeTable, SetSetting
from stele.domain.model.schema import TableOptions
from stele.domain.names import BALANCER
from stele.domain.tablets.sizing import Goals, Present, ReplicaScope, fewest, most
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World
from tests.domain.load_of import IDLE, TOTAL_BYTES, loads_of

TARGET = 1000
tables = st.lists(
    st.tuples(
        st.builds(
            TableOptions,
            min_tablet_count=st.sampled_from((0, 0, 1, 6, 16)),
            max_tablet_count=st.sampled_from((0, 0, 16, 40)),
            min_per_shard_tablet_count=st.sampled_from((0, 0, 1, 9)),
        ),
        st.one_of(st.none(), st.integers(0, 100_000)),
    ),
    min_size=1,
    max_size=4,
)


def of_tables(world: World, name: str) -> str:
    data = world.image.schema.serving(name)
    assert data is not None
    return data.data_id


def of_sizes(sizes: dict[str, float]) -> dict[str, TableLoad]:
    return {data_id: TableLoad(size) for data_id, size in sizes.items()}


def cluster(goal: int = 100) -> World:
    """Return two nodes that each have a replica of everything, so that nothing has to move."""
    world = with_table("a1 b1", 1)
    for name, value in {
        "target_tablet_size_in_bytes": TARGET,
        "target_tablet_rate": 0,
        "tablets_per_shard_goal": goal,
    }.items():
        assert world.apply(SetSetting(name, str(value))) is None
    return world


@settings(max_examples=25)
@given(tables, st.sampled_from((5, 20, 100)))
def test_resizes_reach_an_end_without_reversals(
    asked: list[tuple[TableOptions, int | None]], goal: int
) -> None:
    world, sizes = cluster(goal), dict[str, float]()
    went = dict[str, set[bool]]()
    for number, (options, size) in enumerate(asked):
        name = f"music.t{number}"
        assert world.apply(CreateTable(name, options)) is None
        if size is not None:
            sizes[of_tables(world, name)] = float(size)
    for _ in range(20):
        found = sizing(world.image, of_sizes(sizes))
        assert not found.revoked
        if not found.resizes:
            break
        for resize in found.resizes:
            count = len(tablets(world, resize.table))
            went.setdefault(resize.table, set()).add(resize.tablets > count)
            assert resize.tablets in (2 * count, count // 2)
            assert resize.why
            assert world.apply(ResizeTable(resize.table, resize.tablets)) is None
        world.run()
    else:
        raise AssertionError(f"it goes on and on: {found}")
    assert all(len(ways) == 1 for ways in went.values()), went
    for number, (options, _) in enumerate(asked):
        count = len(tablets(world, f"music.t{number}"))
        assert not options.max_tablet_count or count <= options.max_tablet_count


def test_requested_resize_is_not_repeated_or_reversed_by_varying_sizes() -> None:
    world = cluster()
    world.crash("b1")
    size = {of_tables(world, TABLE): 2001.0}
    (resize,) = sizing(world.image, of_sizes(size)).resizes
    assert (resize.table, resize.tablets) == (TABLE, 2)
    assert resize.why == "its tablet has 2,001 bytes; the target is 1,000"
    assert world.apply(ResizeTable(TABLE, 2)) is None
    for bytes_ in (3000.0, 2000.0, 1000.0):
        assert sizing(world.image, of_sizes({of_tables(world, TABLE): bytes_})) == ((), ())


def test_number_of_concurrent_resizes_is_limited() -> None:
    world = cluster()
    sizes = dict[str, float]()
    for number in range(MOST_AT_ONCE + 3):
        assert world.apply(CreateTable(f"music.t{number:02}")) is None
        sizes[of_tables(world, f"music.t{number:02}")] = 2500.0
    first = sizing(world.image, of_sizes(sizes)).resizes
    assert len(first) == MOST_AT_ONCE
    world.crash("b1")
    for resize in first[1:]:
        assert world.apply(ResizeTable(resize.table, resize.tablets)) is None
    assert len(sizing(world.image, of_sizes(sizes)).resizes) == 4, "waiting tables delay no others"


@settings(max_examples=300)
@given(st.data())
def test_random_options_reach_a_fixed_point_without_reversals(
    data: st.DataObject,
) -> None:
    """Any tables, in any number of dcs, of known and unknown sizes, with any goals."""
    shards = {dc: data.draw(st.integers(1, 6)) for dc in ("d1", "d2")}
    per_shard = data.draw(st.sampled_from((1, 2, 5, 10, 18, 37, 100)))
    goals = Goals(TARGET, 0, per_shard, data.draw(st.sampled_from((1, 2, 3, 10))))
    asked = data.draw(
        st.lists(
            st.tuples(
                st.sets(st.sampled_from(sorted(shards)), min_size=1),
                st.integers(1, 3),
                st.builds(
                    TableOptions,
                    min_tablet_count=st.sampled_from((0, 0, 3, 9, 40)),
                    max_tablet_count=st.sampled_from((0, 0, 2, 64, 100)),
                    expected_data_size_in_gb=st.sampled_from((0, 0, 100)),
                ),
                st.one_of(st.none(), st.floats(0, 100 * TARGET)),
                st.sampled_from((0, 0, 1, 4, 7)),
                st.integers(0, 7),
            ),
            min_size=1,
            max_size=4,
        )
    )
    counts, went = [1 << power for *_, power in asked], [set[bool]() for _ in asked]
    for _ in range(100):
        found = list[Needs]()
        for (dcs, factor, options, size, initial, _), count in zip(asked, counts, strict=True):
            scopes = {dc: ReplicaScope(shards[dc], factor) for dc in dcs}
            about = (options, initial, scopes, Present(count, size), goals)
            low, high = fewest(*about), most(*about)
            found.append(Needs(count=count, options=options, scopes=scopes, fewest=low, most=high))
        wanted = [aim.count for aim in next_counts(found, per_shard)]
        if wanted == counts:
            break
        at = data.draw(st.sampled_from([n for n, c in enumerate(counts) if wanted[n] != c]))
        went[at].add(wanted[at] > counts[at])
        counts[at] = wanted[at]
    else:
        raise AssertionError(f"it goes on and on: {counts}")
    assert all(len(ways) <= 1 for ways in went), went


def test_merge_and_full_disk_do_not_block_each_other() -> None:
    """The sibling leaves the full disk. If both disks are full the table is not merged but balanced."""
    world = with_table("a1 b1 c1", 2, rf=1)
    assert world.apply(AlterTable(TABLE, TableOptions(max_tablet_count=1))) is None
    (one,), (two,) = (row.reads for row in tablets(world))
    assert one != two

    def look(*full: str) -> Proposal:
        free = dict.fromkeys(full, TOTAL_BYTES // 100)
        loads = loads_of(world.image, lambda *_: TOTAL_BYTES // 2, lambda *_: IDLE, **free)
        assert loads.full() == {*full}
        return proposal(world.image, Conditions(loads=loads))

    assert [resize.tablets for resize in look(one).resizes] == [1]
    assert not look(one, two).resizes
    merge = Envelope(request_id="merge", command=ResizeTable(TABLE, 1), actor=BALANCER)
    assert world.submit(merge) is None
    for full, other in ((one, two), (two, one)):
        moves = [(each.move.from_node, each.move.to_node) for each in look(full).moves]
        assert moves == [(full, other)]
    (revoked,) = look(one, two).revoked
    assert revoked.request_id == "merge"
    assert f"while no disk of {min(one, two)}, {max(one, two)} has room" in revoked.why
