"""Actions on one process of a stack: stop, start, kill, remove, and processes that stay down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stele.cli.errors import CliError
from stele.cli.main import run
from stele.cli.places import LocalService
from stele.domain.model.membership import Node
from stele.domain.names import NodeState
from stele_harness.stack import control, lifecycle
from stele_harness.stack.control import Control, Deed, do, note_who_left
from stele_harness.stack.lifecycle import empty, settle, tail_log
from stele_harness.stack.stack import ServiceSpec, Stack
from stele_harness.stack.supervisor import EXIT_BAD_CONFIGURATION, ProcessState

ANNOUNCING = """
import json, os, pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
folder = os.environ.get("STELE_DATA_DIR")
if folder:
    (pathlib.Path(folder) / "node.json").write_text("{}")
print(json.dumps({"http": "http://127.0.0.1:1"}), flush=True)
signal.sigwait([signal.SIGTERM])
"""


OLDER = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(json.dumps({"http": "http://127.0.0.1:1"}), flush=True)
if os.environ.get("STELE_ACCEPT_OLDER_COPY") != "98301":
    sys.exit(print("older_copy: start it with STELE_ACCEPT_OLDER_COPY=98301, and then", file=sys.stderr) or 78)
signal.sigwait([signal.SIGTERM])
"""

REFUSED_LATER = """
import json, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print(json.dumps({"http": "http://127.0.0.1:1"}), flush=True)
signal.sigwait([signal.SIGUSR1])
sys.exit(print("The log lacks epochs that this node has acknowledged.", file=sys.stderr) or 78)
"""

FakeModule = Callable[[str, str], Path]


@pytest.fixture
def stack(tmp_path: Path, fake_module: FakeModule) -> Iterator[Stack]:
    """Return one service and n1, n2, none of which needs a broker."""
    running = stack_over(tmp_path / "run", fake_module("announcing", ANNOUNCING))
    running.start_services(running._wanted())
    try:
        yield running
    finally:
        running.supervisor.stop_all()


def stack_over(directory: Path, modules: Path) -> Stack:
    specs = [
        ServiceSpec("fake", "announcing"),
        *(
            ServiceSpec(name, "announcing", {"STELE_DATA_DIR": "{directory}"})
            for name in ("n1", "n2")
        ),
    ]
    path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    return Stack(directory, nodes=0, services=specs, env={"PYTHONPATH": path})


def names(stack: Stack) -> list[str]:
    return [spec.name for spec in stack._wanted()]


def state_of(stack: Stack, name: str) -> ProcessState:
    return stack.supervisor.status_of(name).state


def test_process_is_stopped_started_and_restarted_by_name(stack: Stack) -> None:
    first = stack.supervisor.status_of("fake").pid
    do(stack, Control(deed=Deed.STOP, name="fake"))
    assert state_of(stack, "fake") is ProcessState.STOPPED
    assert not psutil.pid_exists(first or 0)
    do(stack, Control(deed=Deed.START, name="fake"))
    second = stack.supervisor.status_of("fake").pid
    with pytest.raises(CliError, match="runs already"):
        do(stack, Control(deed=Deed.START, name="fake"))
    assert do(stack, Control(deed=Deed.RESTART, name="fake")).url == stack.url("fake")
    third = stack.supervisor.status_of("fake")
    assert third.state is ProcessState.RUNNING
    assert len({first, second, third.pid}) == 3


@pytest.mark.parametrize("name", [pytest.param("broker-1", marks=pytest.mark.broker), "redis"])
def test_server_is_stopped_killed_and_started_at_its_address(stack: Stack, name: str) -> None:
    """`stele stack status` lists servers with the services, so users will try."""
    server = stack.servers.get(name)
    assert server is not None
    try:
        url = do(stack, Control(deed=Deed.START, name=name)).url
        first = server.pid or 0
        with pytest.raises(CliError, match="runs already"):
            do(stack, Control(deed=Deed.START, name=name))
        do(stack, Control(deed=Deed.STOP, name=name))
        assert not server.is_running()
        assert do(stack, Control(deed=Deed.START, name=name)).url == url
        assert do(stack, Control(deed=Deed.RESTART, name=name)).url == url
        assert (server.pid or 0) != first
        assert str(server.pid) in (stack.directory / "stack.json").read_text()
        do(stack, Control(deed=Deed.KILL, name=name))
        do(stack, Control(deed=Deed.START, name=name))
        assert server.is_running()
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["broker-1", "redis"])
def test_only_nodes_are_removed(stack: Stack, name: str) -> None:
    with pytest.raises(CliError, match="only nodes are removed"):
        do(stack, Control(deed=Deed.REMOVE, name=name))


def test_next_stack_starts_a_stopped_node_but_not_a_killed_one(
    stack: Stack,
) -> None:
    do(stack, Control(deed=Deed.STOP, name="n1"))
    do(stack, Control(deed=Deed.KILL, name="n2"))
    assert stack.supervisor.status_of("n2").exit_code == -signal.SIGKILL
    assert names(stack) == ["fake", "n1"]
    assert stack.why_down("n2") == "it was killed on purpose"
    do(stack, Control(deed=Deed.START, name="n2"))
    assert state_of(stack, "n2") is ProcessState.RUNNING
    assert names(stack) == ["fake", "n1", "n2"]


def test_killed_node_of_an_earlier_stack_can_be_started(
    stack: Stack, tmp_path: Path, fake_module: FakeModule
) -> None:
    do(stack, Control(deed=Deed.KILL, name="n2"))
    later = stack_over(stack.directory, fake_module("announcing", ANNOUNCING))
    later.start_services(later._wanted())
    try:
        assert later.node_names() == ["n1"]
        spec = later._specs[-1]
        later.node_spec = lambda number: spec  # type: ignore[method-assign]
        do(later, Control(deed=Deed.START, name="n2"))
        assert later.node_names() == ["n1", "n2"]
    finally:
        later.supervisor.stop_all()


def test_removed_node_leaves_only_its_name(stack: Stack) -> None:
    do(stack, Control(deed=Deed.REMOVE, name="n2"))
    folder = stack.directory / "services" / "n2"
    assert [path.name for path in folder.iterdir()] == ["stays_down"]
    assert stack.node_names() == ["n1"]
    assert names(stack) == ["fake", "n1"]
    with pytest.raises(CliError, match="n2 was removed, and its name is not used again"):
        do(stack, Control(deed=Deed.START, name="n2"))
    with pytest.raises(CliError, match="no process 'n9'") as raised:
        do(stack, Control(deed=Deed.REMOVE, name="n9"))
    assert raised.value.hint == "Known: fake, n1."
    with pytest.raises(CliError, match="no node 'n2' in this stack") as raised:
        do(stack, Control(replace="n2"))
    assert raised.value.hint == "Known: n1."
    with pytest.raises(CliError) as raised:
        tail_log(stack.directory, "n2", 1)
    assert raised.value.hint == "Known: fake, n1, broker-1, redis, stack."
    started = list[ServiceSpec]()
    stack.start_services = started.extend  # type: ignore[method-assign, assignment]
    stack.url = lambda name: name  # type: ignore[method-assign]
    assert do(stack, Control()).name == "n3", "n2 has left: no node can join under its name"


@pytest.mark.parametrize("deed", [d for d in Deed if d is not Deed.ADD_NODE])
def test_unknown_process_name_lists_the_known_ones(stack: Stack, deed: Deed) -> None:
    with pytest.raises(CliError, match="no process 'n9'") as raised:
        do(stack, Control(deed=deed, name="n9"))
    processes = "fake, n1, n2" if deed is Deed.REMOVE else "broker-1, fake, n1, n2, redis"
    assert raised.value.hint == f"Known: {processes}."


@pytest.mark.parametrize("deed", [Deed.START, Deed.RESTART, Deed.STOP])
def test_process_left_out_needs_a_new_stack(stack: Stack, deed: Deed) -> None:
    with pytest.raises(CliError, match="placements was left out") as raised:
        do(stack, Control(deed=deed, name="placements"))
    assert "`stele stack up` without `--without placements`" in raised.value.hint


OnlyNode = Callable[..., Stack]


@pytest.fixture
def stack_of(tmp_path: Path, fake_module: FakeModule) -> Iterator[OnlyNode]:
    """Start a stack with only n1, a module with this name and source. Its directory is not new."""
    running = list[Stack]()

    def started(name: str, source: str, known: bool = True) -> Stack:
        folder = tmp_path / "run" / "services" / "n1"
        (folder if known else folder.parent).mkdir(parents=True)
        if known:
            (folder / "node.json").write_text("{}")
        path = os.pathsep.join([str(fake_module(name, source)), os.environ.get("PYTHONPATH", "")])
        spec = ServiceSpec("n1", name)
        stack = Stack(tmp_path / "run", nodes=0, services=[spec], env={"PYTHONPATH": path})
        running.append(stack)
        stack.start_services([spec])
        return stack

    yield started
    for stack in running:
        stack.supervisor.stop_all()


def test_refused_node_without_its_directory_does_not_stop_the_others(stack_of: OnlyNode) -> None:
    stack = stack_of("ended", "raise SystemExit(78)", False)
    stack.supervisor.wait_state("n1", ProcessState.GIVEN_UP)


def test_node_is_started_with_an_accepted_loss(stack_of: OnlyNode) -> None:
    stack = stack_of("older", OLDER)
    plain = stack.node_spec
    stack.node_spec = lambda number: replace(plain(number), module="older")  # type: ignore[method-assign]
    with pytest.raises(CliError) as raised:
        settle(stack.directory, "n1")
    assert "exit status 78): older_copy: start it" in raised.value.message
    assert "`stele stack start n1 --accept-older-copy 98301` accepts" in raised.value.hint
    assert "`stele stack add-node --replace n1`" in raised.value.hint
    url = stack.url("n1")
    accepts = {"STELE_ACCEPT_OLDER_COPY": "98301"}
    assert do(stack, Control(deed=Deed.START, name="n1", accepts=accepts)).url == url
    assert state_of(stack, "n1") is ProcessState.RUNNING
    settle(stack.directory, "n1", 1.0)
    do(stack, Control(deed=Deed.STOP, name="n1"))
    do(stack, Control(deed=Deed.START, name="n1"))
    with pytest.raises(CliError, match="older_copy"):  # this stack has no notes
        settle(stack.directory, "n1")


def test_refused_accept_setting_is_not_suggested_again(stack_of: OnlyNode) -> None:
    said = "n1: STELE_ACCEPT_LOST_EPOCHS=0a names the log that this node follows"
    stack = stack_of("wrongly", f"import sys; sys.exit(print('{said}', file=sys.stderr) or 78)")
    with pytest.raises(CliError, match="names the log") as raised:
        settle(stack.directory, "n1")
    assert "--accept-lost-epochs" not in raised.value.hint


def test_accept_options_are_refused_for_services(stack: Stack) -> None:
    stack.stop_one("fake")
    accepts = {"STELE_ACCEPT_OLDER_COPY": "1"}
    with pytest.raises(CliError, match="fake is not a node"):
        do(stack, Control(deed=Deed.START, name="fake", accepts=accepts))


def test_start_is_not_suggested_for_a_node_that_has_left(tmp_path: Path) -> None:
    said = "Neither its name nor its data directory can be used again (node_left)"
    for name, line in (("n7", said), ("n8", "Node 'n8' stands in dc1/r2")):
        (tmp_path / "services" / name).mkdir(parents=True)
        (tmp_path / "services" / name / "stderr.log").write_text(f"{line}\n")
        service = LocalService(
            name, "http://n", state=ProcessState.GIVEN_UP, exit_code=EXIT_BAD_CONFIGURATION
        )
        message, hint = lifecycle.why_given_up(tmp_path, service)
        assert line in message and "stele stack add-node" in hint
        assert ("tries again" in hint) is (name == "n8")


def test_member_that_ends_after_reading_the_log_does_not_count_as_running(
    stack_of: OnlyNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is announced and has a row before it detects that it cannot run."""
    alone = stack_of("refused_later", REFUSED_LATER)
    member = Node(node_id="n1", address="", dc="", rack="", num_tokens=1, state=NodeState.NORMAL)
    monkeypatch.setattr(lifecycle, "_row", lambda *_: member)
    is_well = lifecycle._is_well

    def reads_the_log(service: LocalService | None) -> bool:
        answer = is_well(service)
        alone.kill("n1", signal.SIGUSR1)
        return answer

    monkeypatch.setattr(lifecycle, "_is_well", reads_the_log)
    with pytest.raises(CliError, match=r"exit status 78\): The log lacks epochs"):
        settle(alone.directory, "n1")


def test_left_nodes_do_not_return_with_the_next_stack(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left:
        def __init__(self, *_: object, **__: object) -> None: ...

        def nodes(self) -> list[Node]:
            states = {"n1": NodeState.NORMAL, "n2": NodeState.LEFT, "n7": NodeState.LEFT}
            return [
                Node(node_id=name, address="", dc="", rack="", num_tokens=1, state=state)
                for name, state in states.items()
            ]

    monkeypatch.setattr(control, "StateReading", Left)
    monkeypatch.setattr(control, "find_places", lambda *_: None)
    note_who_left(stack)
    assert stack.why_down("n2") == "it has left the cluster"
    assert names(stack) == ["fake", "n1"]
    assert not (stack.directory / "services" / "n7").exists(), "it runs elsewhere"


def test_nodes_return_if_no_metadata_log_answers(stack: Stack) -> None:
    note_who_left(stack)
    assert names(stack) == ["fake", "n1", "n2"]


def test_purge_deletes_only_files_of_a_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ = tmp_path / "run"
    (run_ / "services" / "n1").mkdir(parents=True)
    (run_ / "stack.log").write_text("")
    (run_ / "thesis.txt").write_text("mine")
    assert run(["stack", "down", "--purge", "--dir", str(run_)]) == 1
    assert "thesis.txt, which no stack made" in capsys.readouterr().err
    assert (run_ / "services" / "n1").exists()
    (run_ / "thesis.txt").unlink()
    assert run(["stack", "down", "--purge", "--dir", str(run_)]) == 0
    assert not run_.exists()
    empty(run_)
