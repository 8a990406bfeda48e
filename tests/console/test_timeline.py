"""Operations of the time line, and the diff of two states as text."""

from __future__ import annotations

from stele.console.difference import difference
from stele.console.epoch_text import epoch_text, names_of, row_of
from stele.console.timeline import Timeline, earliest, timeline
from stele.domain.commands import CreateKeyspace
from stele.domain.names import BALANCER
from stele.words.facts import EpochRow
from stele.words.names import HistoryNames
from tests.console.test_packed_map import images
from tests.domain.history import History, join, three_nodes


def joined() -> History:
    """Return a history in which n4 joined while a keyspace was created."""
    history, world = three_nodes()
    assert history.apply(join(4)) is None
    world.until(lambda: history.image.topology.transitions, "the join has begun")
    assert history.apply(CreateKeyspace("archive", {"dc1": 1})) is None
    world.run()
    return history


def of(history: History, first: int = 1) -> Timeline:
    rows = [row_of(epoch) for epoch in history.epochs if epoch.epoch >= first]
    return timeline(rows, names_of(history.image), history.image.epoch, 1)


def test_join_is_one_operation_with_its_states_and_epochs() -> None:
    found = of(joined())
    operation = found.operations[0]
    assert (operation.what, operation.status) == ("join n4", "done")
    states = [step.state for step in operation.steps]
    assert states[0] == "pending"
    assert states[-3:] == ["write_both_read_old", "write_both_read_new", "finishing"]
    assert len(states) == len({*states}), "a state that is entered once is there once"
    assert operation.epochs[0] == operation.submitted_epoch
    assert operation.epochs[-1] == operation.finished_epoch
    assert len(operation.epochs) > 4


def test_each_epoch_belongs_to_an_operation_a_change_or_the_background() -> None:
    history = joined()
    found = of(history)
    told = {epoch.epoch for epoch in found.changes}
    carried = {epoch for operation in found.operations for epoch in operation.epochs}
    assert not told & carried
    assert len(told | carried) + found.background == len(history.epochs)
    assert [c.command for c in found.changes].count("create_keyspace") == 2


def test_page_starts_where_its_oldest_operation_was_submitted() -> None:
    history = joined()
    operation = of(history).operations[0]
    rows = [row_of(e) for e in history.epochs if e.epoch >= operation.finished_epoch]
    assert earliest(rows) == operation.submitted_epoch
    assert earliest([]) == 0


def test_diff_has_operations_nodes_and_the_share_of_each_node() -> None:
    history = joined()
    states = images(history)
    found = difference(states[of(history).operations[0].submitted_epoch - 2], states[-1])
    groups = {group.title: group.changes for group in found.groups}
    assert any(text.startswith("join n4: done") for _, text in groups["Operations"])
    assert any(sign == "+" and text.startswith("n4: normal") for sign, text in groups["Nodes"])
    assert ("+", "keyspace archive") in groups["Keyspaces and tables"]
    (moved,) = (each for each in found.maps if each.name == "ring dc1:3")
    held = {share.node: (share.before, share.after) for share in moved.nodes}
    assert held["n4"][0] == 0 < held["n4"][1]
    assert sum(after for _, after in held.values()) == 3 * moved.rows


def test_refusals_and_moves_have_the_actor_and_reason_of_their_facts() -> None:
    refused = {
        "type": "CommandRefused",
        "actor": "eve",
        "reason": "a test",
        "command": "leave",
        "code": "unknown_node",
        "message": "There is no such node.",
    }
    told = epoch_text(EpochRow(epoch=7, command="noop", facts=(refused,)), HistoryNames())
    assert (told.actor, told.reason, told.refused) == ("eve", "a test", True)
    request = {"request_id": "r", "status": "pending", "actor": BALANCER, "reason": "n1 is full"}
    moved = {"type": "RequestChanged", "request": request}
    row = EpochRow(epoch=8, command="tablet_migration", actor=BALANCER, facts=(moved,))
    assert epoch_text(row, HistoryNames()).reason == "n1 is full"
