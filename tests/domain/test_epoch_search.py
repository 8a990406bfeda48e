"""Actor, kind, target and time: each filter finds exactly its matches."""

from typing import Any

import msgspec
import pytest

from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    Envelope,
    Leave,
    Rejection,
    SetSetting,
)
from stele.domain.epoch_search import Question, fits, ids_of, texts_of
from stele.domain.facts import Epoch
from stele.domain.model.requests import named
from stele.domain.staging import Part
from tests.domain.epochs import AT_MS, History
from tests.domain.history import join, three_nodes

MINUTE_MS = 60_000
JOIN = named("join n4")


def asked(command: AnyCommand, actor: str, reason: str) -> Envelope:
    return Envelope(
        request_id=named(reason), command=command, actor=actor, reason=reason, origin="cli"
    )


@pytest.fixture(scope="module")
def story() -> History:
    """Return three nodes; a minute later n4 joins, settings change, and bob is refused; then a table."""
    history, driver = three_nodes()
    history.at_ms += MINUTE_MS
    history.apply(join(4, "r1"), JOIN)
    driver.run()
    history.submit(asked(SetSetting("colour", "red"), "bob", "Warm the ROOM"))
    history.submit(asked(SetSetting("colour", "blue"), "bobby", "for Ünal"))
    why = Rejection("too_few_nodes", "The ring is small.", "Add one.")
    history.refuse(asked(Leave("n1"), "bob", "too many"), why)
    history.at_ms += MINUTE_MS
    keyspace = CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=2)
    assert history.submit(asked(keyspace, "eve", "songs")) is None
    assert history.submit(asked(CreateTable("music.songs"), "eve", "more songs")) is None
    return history


def found(story: History, **asked: Any) -> list[Epoch]:
    return [epoch for epoch in story.epochs if fits(Question(**asked), epoch)]


def commands(epochs: list[Epoch]) -> list[str]:
    return [epoch.command for epoch in epochs]


def test_empty_filter_matches_every_epoch(story: History) -> None:
    assert found(story) == story.epochs


def test_epochs_are_found_by_actor_and_command(story: History) -> None:
    assert commands(found(story, actor="bob")) == ["set_setting", "noop"]
    assert commands(found(story, actor="bobby")) == ["set_setting"]
    assert len(found(story, command="set_setting")) == 2
    assert len(found(story, command="set_setting", actor="bobby")) == 1
    assert found(story, command="set_setting", actor="eve") == []


def test_refused_commands_are_found_by_actor_command_and_request(story: History) -> None:
    (refused,) = found(story, refused=True)
    assert [type(fact).__name__ for fact in refused.facts] == ["CommandRefused"]
    assert found(story, refused=True, actor="bob", command="leave") == [refused]
    assert found(story, refused=True, request=named("too many")) == [refused]
    assert found(story, command="leave") == [refused]
    assert found(story, refused=True, actor="log") == []
    assert found(story, refused=True, command="set_setting") == []
    assert found(story, command="leave", actor="log") == [], "each is asked of the same command"


def test_epochs_of_a_request_are_found_until_its_end(story: History) -> None:
    epochs = found(story, request=JOIN)
    assert epochs[0].command == "join"
    kinds = {type(fact).__name__ for epoch in epochs for fact in epoch.facts}
    assert {"RequestChanged", "TransitionOpened", "TransitionMoved", "TransitionFinished"} <= kinds
    assert commands(found(story, request=JOIN, command="join")) == ["join"]
    assert found(story, request="nobody's") == []


def test_epochs_are_found_by_the_kind_of_fact_in_parts(story: History) -> None:
    tables = found(story, facts=frozenset({"TableChanged"}))
    assert commands(tables) == ["create_table"]
    either = found(story, facts=frozenset({"TableChanged", "SettingChanged"}))
    assert commands(either) == ["set_setting", "set_setting", "create_table"]
    part = msgspec.structs.replace(tables[0], facts=(Part("id", 0, tables[0].facts),))  # type: ignore[arg-type]
    assert fits(Question(facts=frozenset({"TableChanged"})), part)
    assert fits(Question(about=ids_of(story.image, "music.songs")), part)


def about(story: History, name: str) -> list[str]:
    return commands(found(story, about=ids_of(story.image, name)))


def test_filter_by_node_matches_only_that_node(story: History) -> None:
    epochs = found(story, about=ids_of(story.image, "n4"))
    assert epochs[0].command == "join"
    assert all("n4" in texts_of(epoch.facts) for epoch in epochs)
    assert about(story, "n") == about(story, "nobody") == []


def test_keyspaces_and_tables_are_found_by_name_and_id(story: History) -> None:
    keyspace, table = (
        story.image.schema.named("music"),
        story.image.schema.table_named("music.songs"),
    )
    assert keyspace is not None and table is not None
    assert about(story, "music") == ["create_keyspace", "create_table"]
    assert about(story, "music.songs") == about(story, table.table_id) == ["create_table"]
    assert about(story, keyspace.keyspace_id) == ["create_keyspace", "create_table"]
    assert about(story, "library") == ["create_keyspace"]


def test_field_names_and_kinds_of_facts_are_not_searched(story: History) -> None:
    epochs = found(story, about=frozenset({"node_id", "type", "NodeChanged", "SettingChanged"}))
    assert epochs == []


def test_words_are_found_anywhere_without_regard_to_case(story: History) -> None:
    assert len(found(story, text=("warm", "room"))) == 1
    assert found(story, text=("warm", "blue")) == [], "all words in one epoch"
    assert commands(found(story, text=("ring", "SMALL"))) == ["noop"], "the text of a refusal"
    assert len(found(story, text=("Ünal",))) == 1
    assert commands(found(story, text=("eve", "music"))) == ["create_keyspace"]


def test_epochs_are_found_by_the_clock_of_the_writer(story: History) -> None:
    epochs = [msgspec.structs.replace(e, at_ms=AT_MS + e.epoch) for e in story.epochs[:9]]

    def shown(**asked: Any) -> list[int]:
        return [epoch.epoch for epoch in epochs if fits(Question(**asked), epoch)]

    assert shown(since_ms=AT_MS + 8) == [8, 9]
    assert shown(until_ms=AT_MS + 2) == [1, 2]
    assert shown(since_ms=AT_MS + 4, until_ms=AT_MS + 5) == [4, 5]
