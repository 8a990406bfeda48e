"""Permission, time and cost of overriding the state of a log, rule by rule."""

import zlib
from functools import cache

import msgspec
import pytest

from stele.domain.base import Rejection
from stele.domain.commands import (
    AnnounceNode,
    CreateKeyspace,
    CreateTable,
    DropTable,
    Envelope,
    FoundCluster,
    LoadState,
    MoveTablets,
    RestrictCommits,
    RevertState,
    SetSetting,
    Truncate,
)
from stele.domain.commits.restricted import restricted
from stele.domain.decide import decide
from stele.domain.features.known import KNOWN
from stele.domain.image import Image
from stele.domain.membership.model import may_take, unclaimed
from stele.domain.names import CommitMode, NodeState, OverrideKind, RequestStatus
from stele.domain.overrides.domain import packed_state, unpacked_state
from stele.domain.recovery.versions import LOST_VERSIONS
from stele.domain.requests.model import named
from stele.domain.snapshot import image_to_facts
from stele.domain.staging import Part
from stele.domain.topology.operations.commands import TabletMove
from stele.log.record_builder import in_parts
from tests.coordinator.world import World
from tests.domain.epochs import AT_MS, LOG_ID, History
from tests.domain.history import join, three_nodes
from tests.domain.overrides.overriding import ask, content_of, load, revert

replace = msgspec.structs.replace


@cache
def _shop() -> tuple[Image, ...]:
    history, _ = shop_world()
    return tuple(history.images)


def shop_world() -> tuple[History, World]:
    """n1 to n4, a keyspace with tablets that has a table, and one without."""
    history, world = three_nodes()
    assert history.apply(join(4)) is None
    world.run()
    shop = CreateKeyspace("shop", {"dc1": 2}, tablets=True, initial_tablets=4)
    assert history.apply(shop) is None
    assert history.apply(CreateTable("shop.orders")) is None
    return history, world


def shop() -> History:
    history = History()
    history.images = [*_shop()]
    return history


def freeze(history: History, actor: str = "ada") -> None:
    assert ask(history, RestrictCommits(mode=CommitMode.FROZEN), "freeze", actor) is None


def code(refused: Rejection | None) -> str:
    return "" if refused is None else refused.code


def test_an_open_log_is_not_overridden() -> None:
    history = shop()
    assert code(revert(history, history.images[-2])) == "log_is_open"


def test_who_froze_the_log_may_override_it_and_nobody_else() -> None:
    history = shop()
    freeze(history, "bob")
    assert code(revert(history, history.images[-2])) == "not_yours"
    history = shop()
    single = RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada")
    assert ask(history, single, "single", "bob") is None
    assert code(revert(history, history.images[-2])) == ""


def test_a_frozen_log_takes_overrides_and_nothing_else() -> None:
    history = shop()
    freeze(history)
    commits = history.image.commits
    for command, taken in (
        (RevertState(to_epoch=1), True),
        (LoadState(content=b""), True),
        (SetSetting("a", "b"), False),
    ):
        envelope = Envelope(request_id=named("x"), command=command, actor="eve")
        assert (restricted(commits, envelope) is None) is taken


def test_it_needs_a_reason_an_epoch_and_a_state() -> None:
    history = shop()
    freeze(history)
    known = content_of(history.images[-2])
    good = RevertState(to_epoch=history.images[-2].epoch, content=known)
    assert code(ask(history, good, "1", reason="")) == "reason_missing"
    for to_epoch, content in ((0, known), (10**9, known), (1, b"")):
        command = RevertState(to_epoch=to_epoch, content=content)
        assert code(ask(history, command, f"2{to_epoch}{len(content)}")) == "unknown_epoch"
    for number, content in enumerate((b"", b"x", packed_state(())[:-2], packed_state(())[2:])):
        assert code(ask(history, LoadState(content=content), f"3{number}")) == "no_state"


def test_what_is_made_since_goes_and_takes_a_word_for_its_rows() -> None:
    history = shop()
    before = history.images[-2]
    freeze(history)
    refused = revert(history, before, accept_loss=False)
    assert refused is not None
    assert (refused.code, "shop.orders is dropped with its rows" in refused.message) == (
        "rows_would_be_lost",
        True,
    )
    history._outcomes.clear()
    assert revert(history, before) is None
    assert not history.image.schema.tables
    assert not [name for name in history.image.ring.placements if name.startswith("tablets:")]


def test_settings_go_back_without_a_loss() -> None:
    history = shop()
    before = history.image
    assert history.apply(SetSetting("colour", "red")) is None
    freeze(history)
    assert revert(history, before, accept_loss=False) is None
    assert history.image.features.settings == before.features.settings
    assert history.image.ring.placements == before.ring.placements


def test_a_table_that_was_dropped_comes_back_empty_under_another_id() -> None:
    history, world = shop_world()
    before = history.image
    old = before.schema.table_named("shop.orders")
    assert old is not None
    assert history.apply(DropTable("shop.orders")) is None
    world.run()
    assert history.image.schema.table_named("shop.orders") is None
    freeze(history)
    history._judge = None
    assert revert(history, before, accept_loss=False) is None
    new = history.image.schema.table_named("shop.orders")
    assert new is not None
    assert new.table_id != old.table_id
    assert new.placement == f"tablets:{new.table_id}"
    ours, theirs = (
        history.image.ring.placements[new.placement],
        before.ring.placements[old.placement],
    )
    assert [row.reads for row in ours.rows] == [row.reads for row in theirs.rows]


def test_what_was_truncated_stays_truncated() -> None:
    history, world = shop_world()
    before = history.image
    assert history.apply(Truncate("shop.orders")) is None
    world.run()
    truncated = history.image.schema.table_named("shop.orders")
    freeze(history)
    history._judge = None
    assert revert(history, before, accept_loss=False) is None
    now = history.image.schema.table_named("shop.orders")
    assert now is not None and truncated is not None
    assert now.data_id == truncated.data_id


def moved() -> tuple[History, World, Image]:
    """A tablet has gone to another node; and the image before that."""
    history, world = shop_world()
    before = history.image
    table = before.schema.table_named("shop.orders")
    assert table is not None
    row = before.ring.placements[table.placement].rows[0]
    to = next(node for node in before.membership.nodes if node not in row.writes)
    move = TabletMove(table="shop.orders", tablet=0, from_node=row.writes[0], to_node=to)
    assert history.apply(MoveTablets((move,))) is None
    return history, world, before


def test_a_range_that_others_have_taken_over_costs_rows() -> None:
    history, world, before = moved()
    world.run()
    freeze(history)
    history._judge = None
    refused = revert(history, before, accept_loss=False)
    assert refused is not None
    assert refused.code == "rows_would_be_lost"
    assert "shop.orders, range (-9223372036854775808" in refused.message
    history._outcomes.clear()
    assert revert(history, before) is None
    version = history.image.topology.version
    table = history.image.schema.table_named("shop.orders")
    assert table is not None
    assert history.image.ring.placements[table.placement].rows[0].version == version
    assert history.image.ring.placements[table.placement].rows[1].version < version


def test_what_is_under_way_ends_before_reads_have_moved_and_costs_nothing() -> None:
    history, world, before = moved()
    world.until(lambda: {*world.image.topology.sessions()}, "it streams")
    (under_way,) = history.image.topology.open()
    freeze(history)
    history._judge = None
    assert revert(history, before, accept_loss=False) is None
    assert not history.image.topology.transitions
    request = history.image.request(under_way.transition_id)
    assert request is not None
    assert request.status is RequestStatus.FAILED
    assert "The state was replaced in epoch" in request.error


def test_a_state_with_something_under_way_takes_no_place() -> None:
    history, world, _ = moved()
    world.until(lambda: history.image.topology.transitions, "it has begun")
    then = history.image
    world.run()
    freeze(history)
    history._judge = None
    assert code(revert(history, then)) == "not_at_rest"


def test_a_node_that_joined_since_is_gone_and_one_that_left_stays_gone() -> None:
    history, world = three_nodes()
    with_three = history.image
    assert history.apply(join(4)) is None
    world.run()
    with_four = history.image
    freeze(history)
    history._judge = None
    assert revert(history, with_three) is None
    assert history.image.membership.nodes["n4"].state is NodeState.LEFT
    history._outcomes.clear()
    assert code(revert(history, with_four)) == "node_left"


def loaded(state: Image) -> str:
    history = shop()
    freeze(history)
    return code(load(history, state))


def test_a_file_may_not_give_what_is_there_another_identity() -> None:
    image = shop().image
    schema = image.schema
    keyspace, table = schema.named("library"), schema.table_named("shop.orders")
    assert keyspace is not None and table is not None
    other = replace(
        schema,
        by_id=schema.by_id.set(keyspace.keyspace_id, replace(keyspace, name="other")),
    )
    assert loaded(replace(image, schema=other)) == "another_entity"
    other = replace(schema, tables=schema.tables.set(table.table_id, replace(table, name="other")))
    assert loaded(replace(image, schema=other)) == "another_entity"


def test_a_file_may_not_bring_nodes_or_features() -> None:
    image = shop().image
    n9 = replace(
        image.membership.nodes["n1"],
        node_id="n9",
        host_id="host-n9",
        address="http://n9",
        tokens=(),
        num_tokens=0,
    )
    members = replace(image.membership, nodes=image.membership.nodes.set("n9", n9))
    assert loaded(replace(image, membership=members)) == "unknown_node"
    features = replace(image.features, enabled=("flying",))
    assert loaded(replace(image, features=features)) == "feature_not_enabled"


def test_an_unsound_file_is_refused_with_its_first_flaw() -> None:
    image = shop().image
    n2 = replace(image.membership.nodes["n2"], rack="no rack")
    members = replace(image.membership, nodes=image.membership.nodes.set("n2", n2))
    assert loaded(replace(image, membership=members)) == "unsound_state"


def test_a_file_is_loaded_and_its_edit_holds() -> None:
    history = shop()
    image = history.image
    freeze(history)
    n2 = replace(image.membership.nodes["n2"], host_id="a lie", address="http://elsewhere")
    keyspace = image.schema.named("shop")
    assert keyspace is not None
    changed = replace(keyspace, initial_tablets=64)
    edited = replace(
        image,
        membership=replace(image.membership, nodes=image.membership.nodes.set("n2", n2)),
        schema=replace(image.schema, by_id=image.schema.by_id.set(keyspace.keyspace_id, changed)),
    )
    assert load(history, edited, accept_loss=False) is None
    now = history.image.schema.named("shop")
    assert now is not None
    assert now.initial_tablets == 64
    assert history.image.membership.nodes["n2"] == image.membership.nodes["n2"], (
        "who it is, is its own"
    )
    override = history.image.overrides.last
    assert override is not None
    assert override.kind is OverrideKind.LOAD


def begun(state: Image) -> History:
    history = History()
    found = FoundCluster("green/1", LOG_ID.hex(), begin_frozen=True)
    assert ask(history, found, "found") is None
    begin = LoadState(
        content=content_of(state), founds=True, of_epoch=state.epoch, of_cluster_id=state.cluster_id
    )
    assert ask(history, begin, "begin") is None
    return history


def test_a_cluster_begins_with_a_dump_and_is_open_then() -> None:
    image = shop().image
    history = begun(image)
    now = history.image
    assert (now.cluster, now.cluster_id, now.epoch) == ("green", "green/1", 2)
    assert now.commits.mode is CommitMode.OPEN
    assert now.schema == image.schema
    assert now.ring.placements == image.ring.placements
    assert now.topology.version > image.topology.version + LOST_VERSIONS
    assert now.topology.fence_version == now.topology.version
    for node_id, node in image.membership.nodes.items():
        there = now.membership.nodes[node_id]
        assert (there.tokens, there.state) == (node.tokens, node.state)
        assert there.host_id == unclaimed(node.host_id)
    assert not now.requests.requests
    assert now.overrides.begun_with is not None
    assert now.overrides.begun_with.of_cluster_id == "demo/1"


def test_only_a_cluster_that_was_founded_for_it_begins_with_a_dump_and_once() -> None:
    image = shop().image
    again = LoadState(content=content_of(image), founds=True)
    assert code(ask(begun(image), again, "again")) == "not_empty"
    history = History()
    assert ask(history, FoundCluster("green/1", LOG_ID.hex()), "found") is None
    assert code(ask(history, again, "again")) == "not_empty"
    frozen = shop()
    freeze(frozen)
    assert code(ask(frozen, again, "again")) == "not_empty"


def announce(history: History, host_id: str, claims: str = "") -> str:
    command = AnnounceNode(
        node_id="n1", address="http://new", host_id=host_id, claims_host_id=claims
    )
    return code(ask(history, command, f"{host_id}/{claims}", "node n1"))


def test_a_place_is_taken_by_the_right_host_once() -> None:
    history = begun(shop().image)
    assert announce(history, "eve") == "host_id_mismatch"
    assert announce(history, "eve", "host-n2") == "host_id_mismatch"
    assert announce(history, "host-n1") == ""
    assert history.image.membership.nodes["n1"].host_id == "host-n1"
    assert announce(history, "eve", "host-n1") == "host_id_mismatch", "it is taken"


def test_an_empty_directory_takes_a_place_that_an_operator_gives_it() -> None:
    history = begun(shop().image)
    assert announce(history, "empty", "host-n1") == ""
    assert history.image.membership.nodes["n1"].host_id == "empty"
    assert announce(history, "host-n1") == "host_id_mismatch", "there is no second replica"
    assert announce(history, "other", "host-n1") == "host_id_mismatch"


@pytest.mark.parametrize(
    ("place", "host_id", "claims", "may"),
    [
        ("a", "a", "", True),
        ("a", "b", "a", False),
        ("unclaimed:a", "a", "", True),
        ("unclaimed:a", "b", "a", True),
        ("unclaimed:a", "b", "", False),
        ("unclaimed:a", "unclaimed:a", "", False),
        ("unclaimed:", "b", "", False),
        ("", "", "", True),
    ],
)
def test_who_may_take_a_place(place: str, host_id: str, claims: str, may: bool) -> None:
    assert may_take(place, host_id, claims) is may


def test_a_large_override_goes_in_parts() -> None:
    history = shop()
    freeze(history)
    target = three_nodes()[0].image
    command = RevertState(to_epoch=target.epoch, accept_loss=True, content=content_of(target))
    envelope = Envelope(request_id=named("r"), command=command, actor="ada", reason="why")
    image = history.image

    def after(epochs: int) -> tuple[object, ...] | Rejection:
        return decide(replace(image, epoch=image.epoch + epochs), envelope, AT_MS)

    facts = after(0)
    assert not isinstance(facts, Rejection)
    split = in_parts(facts, "s", after, 200)  # type: ignore[arg-type]
    assert not isinstance(split, Rejection)
    parts, commit = split
    assert len(parts) > 2
    assert all(isinstance(part, Part) for part in parts)
    assert type(commit[-1]).__name__ == "StateReplaced"


def test_a_state_is_the_same_in_a_command() -> None:
    image = shop().image
    facts = image_to_facts(image)
    assert [*unpacked_state(packed_state(facts))] == facts


def test_whatever_is_loaded_is_decided() -> None:
    """Facts that are missing, doubled or in another order make a rejection or a state, and never an error."""
    image = shop().image
    facts = image_to_facts(image)
    some = [
        *([*facts[:n], *facts[n + 1 :]] for n in range(len(facts))),
        *([*facts[:n], facts[n], *facts[n:]] for n in range(len(facts))),
        [*reversed(facts)],
        [fact for fact in facts if type(fact).__name__ != "NodeNumbered"],
    ]
    codes = set[str]()
    for number, each in enumerate(some):
        history = shop()
        freeze(history)
        command = LoadState(content=packed_state(each), accept_loss=True)
        codes.add(code(ask(history, command, f"load{number}")))
    assert {"", "no_state"} <= codes


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'[{"type":"NodeChanged","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    ],
)
def test_what_is_nested_without_end_is_no_state(content: bytes) -> None:
    history = shop()
    freeze(history)
    assert code(ask(history, LoadState(content=zlib.compress(content)), "x")) == "no_state"


def test_a_number_that_no_record_can_hold_is_no_state() -> None:
    state = shop().image
    huge = replace(state, topology=replace(state.topology, since_epoch=1 << 70))
    assert loaded(huge) == "no_state"
    history = shop()
    freeze(history)
    far = LoadState(content=content_of(state), of_epoch=1 << 70)
    assert code(ask(history, far, "x")) == "no_state"


def test_a_cluster_does_not_begin_above_all_versions() -> None:
    state = shop().image
    last = (1 << 63) - 1
    high = replace(state, topology=replace(state.topology, version=last, fence_version=last))
    history = History()
    found = FoundCluster("green/1", LOG_ID.hex(), begin_frozen=True)
    assert ask(history, found, "found") is None
    begin = LoadState(content=content_of(high), founds=True, of_epoch=state.epoch)
    assert code(ask(history, begin, "begin")) == "unsound_state"
    again = LoadState(content=content_of(state), founds=True, of_epoch=state.epoch)
    assert ask(history, again, "again") is None


def test_a_ring_by_which_nobody_could_ever_join_takes_no_place() -> None:
    """The rows are those of before: each join would wait for ranges that do not come out."""
    image = shop().image
    nodes = image.membership.nodes
    one, two = nodes["n1"], nodes["n2"]
    swapped = nodes.set("n1", replace(one, tokens=two.tokens)).set(
        "n2", replace(two, tokens=one.tokens)
    )
    members = replace(image.membership, nodes=swapped)
    assert loaded(replace(image, membership=members)) == "unsound_state"


def test_an_unsafe_setting_comes_back_by_a_word_only() -> None:
    name, value = next(
        (each.name, option)
        for each in KNOWN.values()
        for option in getattr(each, "options", ())
        if each.is_unsafe(option)
    )
    history = shop()
    assert history.apply(SetSetting(name, value, force=True)) is None
    unsafe = history.image
    assert history.apply(SetSetting(name, "")) is None
    freeze(history)
    assert code(revert(history, unsafe, accept_loss=False)) == "rows_would_be_lost"
    history._outcomes.clear()
    assert revert(history, unsafe) is None
    assert history.image.features.settings[name] == value


def test_rows_that_name_nodes_without_numbers_are_no_state() -> None:
    facts = [f for f in image_to_facts(shop().image) if type(f).__name__ != "NodeNumbered"]
    history = shop()
    freeze(history)
    assert code(ask(history, LoadState(content=packed_state(facts)), "x")) == "no_state"
