"""Keyspaces, tables, table snapshots and settings as the page receives them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stele.console.schema_view import schema_difference, schema_shown
from stele.domain.commands import AlterSchema
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.features import FeaturesEnabled, SettingChanged
from stele.domain.model.schema import (
    Balancing,
    BalancingSwitched,
    Table,
    TableChanged,
    TableOptions,
    tablet_map,
)
from stele.domain.model.settings import KNOWN
from stele.domain.model.table_snapshots import (
    TableRestoreBegun,
    TableSnapshot,
    TableSnapshotTaken,
    TabletRestored,
    WrittenPart,
)
from stele.words.cql_parser import parse_cql
from tests.console.generated import TABLE, large_image
from tests.domain.history import three_nodes

EXAMPLES = Path(__file__).parents[2] / "examples" / "schema"

TABLETS = 8
OPTIONS = TableOptions(min_tablet_count=4, auto_repair_enabled="on")


def with_facts(*facts: AnyFact) -> Image:
    return apply_facts(large_image(3, TABLETS), facts)


def snapshot() -> TableSnapshot:
    parts = tuple(WrittenPart(node_id=n, manifest="", rows=5, size_bytes=70) for n in ("n1", "n2"))
    return TableSnapshot(
        snapshot_id="s1",
        name="before <b>",
        table="shop.orders",
        table_id=TABLE,
        data_id=TABLE,
        tablets=TABLETS,
        options=OPTIONS,
        replication={"dc1": 2},
        epoch=7,
        taken_ms=1,
        expires_ms=0,
        parts=parts,
    )


def test_empty_state_has_only_the_defaults_of_settings() -> None:
    found = schema_shown(EMPTY_FOR_FOLLOWERS)
    assert (found.keyspaces, found.tables, found.snapshots, found.restores) == ((), (), (), ())
    assert {each.name for each in found.settings} == {*KNOWN}
    assert not any(each.value or each.unsafe for each in found.settings)


def test_table_has_its_set_options_and_its_colocated_table() -> None:
    map_ = tablet_map(TABLE)
    orders = Table(table_id=TABLE, keyspace_id="k1", name="orders", placement=map_, options=OPTIONS)
    lines = Table(table_id="t2", keyspace_id="k1", name="lines", placement=map_)
    off = Balancing(off_since=9, until_ms=3)
    found = schema_shown(
        with_facts(TableChanged(orders), TableChanged(lines), BalancingSwitched(TABLE, off))
    )
    second, first = found.tables
    assert (first.name, first.tablets, first.colocated_with) == ("shop.orders", TABLETS, "")
    assert first.options == {"min_tablet_count": 4, "auto_repair_enabled": "on"}
    assert first.balancing == off
    assert (second.name, second.options) == ("shop.lines", {})
    assert (second.tablets, second.colocated_with) == (TABLETS, "shop.orders")
    (keyspace,) = found.keyspaces
    assert (keyspace.name, keyspace.replication, keyspace.tables) == ("shop", "dc1=3", 2)


def test_snapshot_sums_its_parts_and_a_restore_counts_tablets() -> None:
    found = schema_shown(
        with_facts(
            TableSnapshotTaken(snapshot()),
            TableRestoreBegun("r1", TABLE, "s1", TABLETS),
            TabletRestored("r1", 2, TABLETS, 11),
        )
    )
    (taken,) = found.snapshots
    assert (taken.name, taken.rows, taken.size_bytes, taken.nodes) == ("before <b>", 10, 140, 2)
    (restore,) = found.restores
    assert (restore.table, restore.snapshot) == ("shop.orders", "before <b>")
    assert (restore.restored, restore.tablets) == (1, TABLETS)
    assert msgspec.json.encode(found)


def test_settings_have_values_and_defaults_and_include_unknown_ones() -> None:
    name = next(iter(KNOWN))
    value = str(KNOWN[name].default)
    found = schema_shown(
        with_facts(
            SettingChanged(name, value),
            SettingChanged("colour", "<b>"),
            FeaturesEnabled(("b", "a")),
        )
    )
    by_name = {each.name: each for each in found.settings}
    assert (by_name[name].value, by_name[name].default) == (value, value)
    assert by_name[name].counts
    assert (by_name["colour"].value, by_name["colour"].counts) == ("<b>", "")
    assert found.features == ("a", "b")


def radio() -> tuple[Image, Image]:
    """Return the states after ``radio.cql`` and after ``longer.cql``."""
    history, _ = three_nodes()
    history.enable("schema_objects")
    states = list[Image]()
    for name in ("radio", "longer"):
        text = (EXAMPLES / f"{name}.cql").read_text()
        assert history.apply(AlterSchema(parse_cql(text))) is None
        states.append(history.image)
    return states[0], states[1]


def test_tables_and_views_have_columns_with_types() -> None:
    found = schema_shown(radio()[0])
    by_name = {table.name: table for table in found.tables}
    songs = by_name["radio.songs"]
    assert [(c.name, c.type, c.kind) for c in songs.columns][:2] == [
        ("id", "uuid", "partition_key"),
        ("artist", "text", "regular"),
    ]
    assert (songs.kind, by_name["radio.songs_by_artist"].kind) == ("table", "view")
    assert songs.version == found.version.epoch
    assert songs.indexes == ("songs_tags_idx on values(tags)",)
    assert [(each.name, each.kind) for each in found.objects] == [("radio.person", "type")]
    assert "CREATE INDEX" in found.cql["radio.songs"]


def test_schema_diff_has_changed_objects_with_their_lines() -> None:
    before, after = radio()
    found = {each.name: each for each in schema_difference(before, after).objects}
    assert {name: each.sign for name, each in found.items()} == dict.fromkeys(
        ("radio.person", "radio.songs"), "~"
    )
    signed = [line for line in found["radio.songs"].lines if line[0] != " "]
    assert signed == [("+", "    length duration,")]
    added = schema_difference(EMPTY_FOR_FOLLOWERS, before).objects
    assert {each.sign for each in added} == {"+"}
    assert not schema_difference(after, after).objects
