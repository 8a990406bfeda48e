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
from stele.domain.decide import decide
from stele.domain.image import Image
from stele.domain.model.membership import may_take, unclaimed
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import named
from stele.domain.model.settings import KNOWN
from stele.domain.names import CommitMode, NodeState, OverrideKind, RequestStatus
from stele.domain.not_taken import restricted
from stele.domain.override_facts import LOST_VERSIONS
from stele.domain.overrides import packed_state, unpacked_state
from stele.domain.snapshot import image_to_facts
from stele.domain.staging import Part
from stele.log.record_builder import in_parts
from tests.coordinator.world import World
from tests.domain.epochs import AT_MS, LOG_ID, History, code_of
from tests.domain.history import join, three_nodes
from tests.domain.overrides.overriding import ask, content_of, load, revert

replace = msgspec.structs.replace


@cache
def _shop() -> tuple[Image, ...]:
    history, _ = shop_world()
    return tuple(history.images)


def shop_world() -> tuple[History, World]:
    """Return n1 to n4, a keyspace with tablets and one table, and a keyspace without tablets."""
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


def test_override_of_an_open_log_is_refused() -> None:
    history = shop()
    assert code_of(revert(history, history.images[-2])) == "log_is_open"


def test_only_the_actor_who_restricted_the_log_may_override_it() -> None:
    history = shop()
    freeze(history, "bob")
    assert code_of(revert(history, history.images[-2])) == "not_yours"
    history = shop()
    single = RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada")
    assert ask(history, single, "single", "bob") is None
    assert code_of(revert(history, history.images[-2])) == ""


def test_frozen_log_accepts_only_overrides() -> None:
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


def test_override_needs_a_reason_an_epoch_and_a_state() -> None:
    history = shop()
    freeze(history)
    known = content_of(history.images[-2])
    good = RevertState(to_epoch=history.images[-2].epoch, content=known)
    assert code_of(ask(history, good, "1", reason="")) == "reason_missing"
    for to_epoch, content in ((0, known), (10**9, known), (1, b"")):
        command = RevertState(to_epoch=to_epoch, content=content)
        assert code_of(ask(history, command, f"2{to_epoch}{len(content)}")) == "unknown_epoch"
    for number, content in enumerate((b"", b"x", packed_state(())[:-2], packed_state(())[2:])):
        assert code_of(ask(history, LoadState(content=content), f"3{number}")) == "no_state"


def test_override_that_drops_rows_needs_accept_loss() -> None:
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


def test_settings_are_reverted_without_loss() -> None:
    history = shop()
    before = history.image
    assert history.apply(SetSetting("colour", "red")) is None
    freeze(history)
    assert revert(history, before, accept_loss=False) is None
    assert history.image.features.settings == before.features.settings
    assert history.image.ring.placements == before.ring.placements


def test_dropped_table_is_restored_empty_under_a_new_id() -> None:
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


def test_truncated_table_stays_truncated() -> None:
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
    """Start the migration of a tablet. Return the image before it as well."""
    history, world = shop_world()
    before = history.image
    table = before.schema.table_named("shop.orders")
    assert table is not None
    row = before.ring.placements[table.placement].rows[0]
    to = next(node for node in before.membership.nodes if node not in row.writes)
    move = TabletMove(table="shop.orders", tablet=0, from_node=row.writes[0], to_node=to)
    assert history.apply(MoveTablets((move,))) is None
    return history, world, before


def test_override_of_a_moved_range_loses_rows() -> None:
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


def test_override_during_streaming_ends_the_transition_without_loss() -> None:
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


def test_state_with_an_open_transition_cannot_be_restored() -> None:
    history, world, _ = moved()
    world.until(lambda: history.image.topology.transitions, "it has begun")
    then = history.image
    world.run()
    freeze(history)
    history._judge = None
    assert code_of(revert(history, then)) == "not_at_rest"


def test_override_removes_a_joined_node_and_keeps_a_left_node_out() -> None:
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
    assert code_of(revert(history, with_four)) == "node_left"


def loaded(state: Image) -> str:
    history = shop()
    freeze(history)
    return code_of(load(history, state))


def test_loaded_file_cannot_change_the_identity_of_entities() -> None:
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


def test_loaded_file_cannot_add_nodes_or_features() -> None:
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


def test_unsound_file_is_refused() -> None:
    image = shop().image
    n2 = replace(image.membership.nodes["n2"], rack="no rack")
    members = replace(image.membership, nodes=image.membership.nodes.set("n2", n2))
    assert loaded(replace(image, membership=members)) == "unsound_state"


def test_loaded_file_applies_its_edits() -> None:
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


def test_cluster_starts_from_a_dump_and_opens() -> None:
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


def test_only_a_cluster_founded_frozen_starts_from_a_dump_and_only_once() -> None:
    image = shop().image
    again = LoadState(content=content_of(image), founds=True)
    assert code_of(ask(begun(image), again, "again")) == "not_empty"
    history = History()
    assert ask(history, FoundCluster("green/1", LOG_ID.hex()), "found") is None
    assert code_of(ask(history, again, "again")) == "not_empty"
    frozen = shop()
    freeze(frozen)
    assert code_of(ask(frozen, again, "again")) == "not_empty"


def announce(history: History, host_id: str, claims: str = "") -> str:
    command = AnnounceNode(
        node_id="n1", address="http://new", host_id=host_id, claims_host_id=claims
    )
    return code_of(ask(history, command, f"{host_id}/{claims}", "node n1"))


def test_unclaimed_node_is_claimed_once_by_its_host_id() -> None:
    history = begun(shop().image)
    assert announce(history, "eve") == "host_id_mismatch"
    assert announce(history, "eve", "host-n2") == "host_id_mismatch"
    assert announce(history, "host-n1") == ""
    assert history.image.membership.nodes["n1"].host_id == "host-n1"
    assert announce(history, "eve", "host-n1") == "host_id_mismatch", "it is taken"


def test_empty_directory_claims_a_node_that_an_operator_names() -> None:
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
def test_may_take(place: str, host_id: str, claims: str, may: bool) -> None:
    assert may_take(place, host_id, claims) is may


def test_large_override_is_split_into_parts() -> None:
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


def test_packed_state_unpacks_to_the_same_facts() -> None:
    image = shop().image
    facts = image_to_facts(image)
    assert [*unpacked_state(packed_state(facts))] == facts


def test_load_of_mutated_facts_is_decided_without_an_error() -> None:
    """Missing, repeated or reordered facts give a rejection or a state, never an exception."""
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
        codes.add(code_of(ask(history, command, f"load{number}")))
    assert {"", "no_state"} <= codes


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'[{"type":"NodeChanged","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    ],
)
def test_deeply_nested_content_is_no_state(content: bytes) -> None:
    history = shop()
    freeze(history)
    assert code_of(ask(history, LoadState(content=zlib.compress(content)), "x")) == "no_state"


def test_number_too_large_for_a_record_is_no_state() -> None:
    state = shop().image
    huge = replace(state, topology=replace(state.topology, since_epoch=1 << 70))
    assert loaded(huge) == "no_state"
    history = shop()
    freeze(history)
    far = LoadState(content=content_of(state), of_epoch=1 << 70)
    assert code_of(ask(history, far, "x")) == "no_state"


def test_cluster_cannot_start_above_all_versions() -> None:
    state = shop().image
    last = (1 << 63) - 1
    high = replace(state, topology=replace(state.topology, version=last, fence_version=last))
    history = History()
    found = FoundCluster("green/1", LOG_ID.hex(), begin_frozen=True)
    assert ask(history, found, "found") is None
    begin = LoadState(content=content_of(high), founds=True, of_epoch=state.epoch)
    assert code_of(ask(history, begin, "begin")) == "unsound_state"
    again = LoadState(content=content_of(state), founds=True, of_epoch=state.epoch)
    assert ask(history, again, "again") is None


def test_state_whose_ring_does_not_match_its_rows_is_refused() -> None:
    """The rows belong to the old tokens, so each join would wait for ranges that no plan yields."""
    image = shop().image
    nodes = image.membership.nodes
    one, two = nodes["n1"], nodes["n2"]
    swapped = nodes.set("n1", replace(one, tokens=two.tokens)).set(
        "n2", replace(two, tokens=one.tokens)
    )
    members = replace(image.membership, nodes=swapped)
    assert loaded(replace(image, membership=members)) == "unsound_state"


def test_unsafe_setting_is_restored_only_with_accept_loss() -> None:
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
    assert code_of(revert(history, unsafe, accept_loss=False)) == "rows_would_be_lost"
    history._outcomes.clear()
    assert revert(history, unsafe) is None
    assert history.image.features.settings[name] == value


def test_rows_that_name_nodes_without_numbers_are_no_state() -> None:
    facts = [f for f in image_to_facts(shop().image) if type(f).__name__ != "NodeNumbered"]
    history = shop()
    freeze(history)
    assert code_of(ask(history, LoadState(content=packed_state(facts)), "x")) == "no_state"
