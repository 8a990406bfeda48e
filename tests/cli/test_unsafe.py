"""``stele unsafe`` and ``stele found --from`` against answers that the rules of the log computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stele.cli import dumps
from stele.domain.commands import SetSetting
from stele.domain.overrides import unpacked_state
from stele.metadata_log.pages import dump_of
from stele.words.facts import fact_words
from tests.cli.conftest import Server, Stele
from tests.domain.overrides.overriding import revert
from tests.domain.overrides.test_rules import freeze, shop


def outcome(epoch: int) -> dict[str, Any]:
    return {"request_id": "r", "applied": True, "epoch": epoch, "state_id": "", "log_id": "ab" * 16}


def overriding(server: Server) -> None:
    """Answer with the states before and after a revert of the newest epoch."""
    history = shop()
    before = history.image
    assert history.apply(SetSetting("colour", "red")) is None
    freeze(history)
    frozen = history.image
    assert revert(history, before, accept_loss=False) is None
    for image in (before, frozen, history.image):
        server.answer("GET", "/v1/dump", dump_of(image))
    server.answer("POST", "/v1/commands", outcome(history.image.epoch))


def test_revert_shows_the_diff_and_both_states(server: Server, stele: Stele) -> None:
    overriding(server)
    history = shop()
    args = ("unsafe", "revert", f"--to={history.image.epoch}", "--actor=ada", "--reason=a mistake")
    ran = stele.ok(*args, "--i-know-what-this-does")
    assert "- setting colour" in ran.out
    assert "was replaced by" in ran.out
    (asked,) = server.asked_for("/v1/commands")
    command = msgspec.json.decode(asked.body)["command"]
    assert command["type"] == "revert_state"
    assert not command["content"], "the state is the log's own to find"


def test_revert_without_confirmation_only_shows_the_diff(server: Server, stele: Stele) -> None:
    overriding(server)
    epoch = shop().image.epoch
    ran = stele.exits(2, "unsafe", "revert", f"--to={epoch}", "--actor=ada", "--reason=a mistake")
    assert "- setting colour" in ran.out
    assert "Say --i-know-what-this-does" in ran.err
    assert not server.asked_for("/v1/commands")


def test_revert_needs_a_reason_unless_it_is_a_dry_run(server: Server, stele: Stele) -> None:
    overriding(server)
    epoch = shop().image.epoch
    assert "Say --reason" in stele("unsafe", "revert", f"--to={epoch}", "--actor=ada").err
    overriding(server)
    ran = stele("unsafe", "revert", f"--to={epoch}", "--actor=ada", "--dry-run")
    assert "nothing was done" in ran.out + ran.err
    assert not server.asked_for("/v1/commands")


def test_possible_loss_is_shown_and_needs_its_own_option(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    history = shop()
    before = history.images[-2]
    server.answer("GET", "/v1/dump", dump_of(history.image))
    file = tmp_path / "state.json"
    dumps.write(file, before)
    load = ("unsafe", "load", str(file), "--actor=ada", "--reason=x")
    assert "Freeze it first" in stele(*load, "--i-know-what-this-does").err
    assert "LOST: shop.orders" in stele(*load, "--dry-run").out
    freeze(history)
    server.answers.clear()
    server.answer("GET", "/v1/dump", dump_of(history.image))
    ran = stele.exits(1, *load, "--i-know-what-this-does")
    assert "LOST: shop.orders is dropped with its rows" in ran.out
    assert "--accept-loss" in ran.err
    assert not server.asked_for("/v1/commands")


def test_override_that_the_log_would_refuse_is_not_sent(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    history = shop()
    freeze(history, "bob")
    server.answer("GET", "/v1/dump", dump_of(history.image))
    file = tmp_path / "state.json"
    dumps.write(file, history.image)
    ran = stele("unsafe", "load", str(file), "--actor=ada", "--reason=x")
    assert "The log is bob's at present" in ran.err
    file.write_text(file.read_text().replace('"rack":"r2"', '"rack":"r 2"', 1))
    ran = stele("unsafe", "load", str(file), "--actor=ada", "--reason=x")
    assert "is unsound: node n2" in ran.err


def topology(since_epoch: int, cluster: str = "demo") -> dict[str, Any]:
    mode = "frozen" if since_epoch else "open"
    return {
        "epoch": 1,
        "state_id": "",
        "cluster": cluster,
        "cluster_id": f"{cluster}/1",
        "log_id": "ab" * 16,
        "topology": {},
        "coordinator": {},
        "transitions": [],
        "commits": {"mode": mode, "since_epoch": since_epoch},
    }


def test_found_from_a_file_founds_a_frozen_log_and_loads_the_state(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    image = shop().image
    file = tmp_path / "state.json"
    dumps.write(file, image)
    server.answer("GET", "/v1/topology", topology(0, ""))
    server.answer("GET", "/v1/topology", topology(1))
    server.answer("POST", "/v1/commands", outcome(1))
    server.answer("POST", "/v1/commands", outcome(2))
    ran = stele.ok("found", f"--from={file}", "--reason=it burnt")
    assert f"begins with epoch {image.epoch} of demo, as its epoch 2" in ran.out
    assert f"STELE_ACCEPT_LOST_EPOCHS={image.log_id.hex()}" in ran.out
    found, begin = (msgspec.json.decode(a.body) for a in server.asked_for("/v1/commands"))
    assert found["command"] == {
        "type": "found", "cluster_id": "", "log_id": "", "topic_id": "", "begin_frozen": True,
        "enable_features": [],
    }  # fmt: skip
    assert begin["command"]["founds"] is True
    content = msgspec.convert(begin["command"]["content"], bytes)
    assert unpacked_state(content)


def test_interrupted_found_from_a_file_continues(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    file = tmp_path / "state.json"
    dumps.write(file, shop().image)
    server.answer("GET", "/v1/topology", topology(1))
    server.answer("POST", "/v1/commands", outcome(2))
    assert stele("found", f"--from={file}").exit_code == 0
    (begin,) = server.asked_for("/v1/commands")
    assert msgspec.json.decode(begin.body)["command"]["type"] == "load_state"


def test_found_from_a_file_fails_on_an_existing_cluster(
    server: Server, stele: Stele, tmp_path: Path
) -> None:
    file = tmp_path / "state.json"
    dumps.write(file, shop().image)
    server.answer("GET", "/v1/topology", topology(0))
    server.answer("POST", "/v1/commands", outcome(7))
    assert "The log is not empty" in stele("found", f"--from={file}").err
    assert len(server.asked_for("/v1/commands")) == 1


def test_history_describes_an_override() -> None:
    override = {
        "kind": "revert", "of_epoch": 7, "of_cluster_id": "demo/1", "accept_loss": True,
        "hash_before": "a" * 64, "hash_after": "b" * 64,
    }  # fmt: skip
    said = fact_words({"type": "StateReplaced", "override": override})
    assert said == (
        f"the state is that of epoch 7 again: state {'a' * 16} was replaced by {'b' * 16}, rows that may be"
        " lost given up (unsafe)"
    )
