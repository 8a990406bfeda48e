"""A build with newer facts and fields writes what older builds can read, as long as that loses nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stele.domain import decide as decide_module
from stele.domain.commands import Envelope, Rejection, SetSetting
from stele.domain.decide import decide
from stele.domain.facts import Epoch
from stele.domain.model.cluster import FoundCluster
from stele.domain.model.features import FeaturesEnabled, SettingChanged
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.requests import named
from stele.domain.registry import FEATURES_OF_FACTS, features_of
from stele.log import codec
from stele.log.codec import decode_epoch, encode_epoch
from stele.log.schemas import HEADER_BYTES, load_schemas, schema_folder
from tests import schema_history
from tests.domain.history import three_nodes

NODE = Node(node_id="n1", address="http://n1", dc="dc1", rack="r1", num_tokens=16)


def epoch(*facts: Any) -> Epoch:
    return Epoch(
        prev_state_id=bytes(16),
        state_id=bytes(16),
        epoch=1,
        request_id="r",
        command="c",
        facts=facts,
    )


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bytes]]:
    """Return a function that releases a changed schema of Epoch, and returns its header."""
    folder = tmp_path / "schemas"
    shutil.copytree(schema_folder(), folder)
    caches = (load_schemas, codec.older_releases, codec._tails, codec._readers)

    def forget() -> None:
        for cached in caches:
            cached.cache_clear()

    def change(edit: Callable[[list[Any]], None]) -> bytes:
        path = folder / "epoch.avsc"
        schema = json.loads(path.read_text())
        edit(next(f for f in schema["fields"] if f["name"] == "facts")["type"]["items"])
        path.write_text(json.dumps(schema))
        assert schema_history.release(folder) == 0
        forget()
        return load_schemas().headers["Epoch"]

    monkeypatch.setenv("STELE_SCHEMAS", str(folder))
    forget()
    yield change
    forget()


def new_field(facts: list[Any]) -> None:
    (node,) = (f["fields"][0]["type"] for f in facts if f["name"] == "NodeChanged")
    node["fields"].append({"name": "host_name", "type": "string", "default": ""})


def new_fact(facts: list[Any]) -> None:
    facts.append({"type": "record", "name": "TabletMoved", "fields": []})


def header_of(*facts: Any) -> bytes:
    return encode_epoch(epoch(*facts))[:HEADER_BYTES]


def test_new_fact_changes_only_the_records_that_carry_it(release: Callable[..., bytes]) -> None:
    before = header_of(NodeChanged(NODE))
    after = release(new_fact)
    assert before != after
    known = encode_epoch(epoch(NodeChanged(NODE)))
    assert known[:HEADER_BYTES] == before
    assert decode_epoch(known).facts == (NodeChanged(NODE),)
    record: dict[str, Any] = {"facts": [("stele.TabletMoved", {})]}
    assert codec.oldest_sufficient("Epoch", record) == after


def test_new_field_needs_the_new_schema_only_when_it_is_set(release: Callable[..., bytes]) -> None:
    before = header_of(NodeChanged(NODE))
    after = release(new_field)
    node = {"node_id": "n1", "host_name": ""}
    for name, header in (("", before), ("rack12-host7", after)):
        fact = ("stele.NodeChanged", {"node": {**node, "host_name": name}})
        assert codec.oldest_sufficient("Epoch", {"facts": [fact]}) == header


def test_oldest_sufficient_release_is_used(
    release: Callable[..., bytes],
) -> None:
    known = load_schemas().releases["Epoch"]
    second, third = release(new_field), release(new_fact)
    assert load_schemas().releases["Epoch"] == (*known, second, third)
    assert header_of(SettingChanged("a", "b")) == known[0]


def test_command_is_written_with_the_oldest_schema_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: Callable[..., bytes]
) -> None:
    """The metadata-log that decides it may run the previous build."""
    path = tmp_path / "schemas" / "command.avsc"
    envelope = Envelope(request_id="r", command=SetSetting("a", "b"))
    before = codec.encode_envelope(envelope)[:HEADER_BYTES]
    schema = json.loads(path.read_text())
    commands = next(f for f in schema["fields"] if f["name"] == "command")["type"]
    commands.append({"type": "record", "name": "move_tablet", "fields": []})
    path.write_text(json.dumps(schema))
    release(new_fact)
    assert codec.encode_envelope(envelope)[:HEADER_BYTES] == before
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope
    record: dict[str, Any] = {"request_id": "r", "command": ("stele.move_tablet", {})}
    assert codec.oldest_sufficient("Envelope", record) != before


def test_required_features_come_from_facts_and_missing_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, _ = three_nodes()
    monkeypatch.setitem(FEATURES_OF_FACTS, SettingChanged, "settings_v2")
    monkeypatch.setattr(decide_module, "KNOWN_FEATURES", frozenset({"settings_v2"}))
    assert features_of((SettingChanged("a", "b"),)).required == ("settings_v2",)
    assert features_of((NodeChanged(NODE),)).required == ()
    asked = Envelope(request_id=named("x"), command=SetSetting("a", "b"))
    refused = decide(history.image, asked, 0)
    assert isinstance(refused, Rejection)
    assert refused.code == "feature_not_enabled"
    assert refused.details == {"features": "settings_v2"}
    assert features_of((FeaturesEnabled(("b", "a")),)).required == ("a", "b")
    assert features_of((FeaturesEnabled(("b", "a")),)).used == ()
    assert not isinstance(
        decide(history.image, Envelope(request_id=named("y"), command=FoundCluster()), 0), Rejection
    )
