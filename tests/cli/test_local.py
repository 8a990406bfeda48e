"""The local stack: its lock, control requests, stack file and shell variables."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from rich.console import Console

from stele.cli.errors import CliError, UnreachableError
from stele.cli.main import run
from stele.cli.places import STACK_FILE, find_places, is_held, read_stack_file, told_or_of_stack
from stele.runtime import java
from stele_harness.demo.words import take_up
from stele_harness.stack import foreground
from stele_harness.stack.control import (
    CONTROL_DIRECTORY,
    Control,
    ControlAnswer,
    add_node,
    answer_questions,
    ask_stack,
)
from stele_harness.stack.foreground import (
    StackOptions,
    Teller,
    java_notes,
    run_in_foreground,
    services_to_start,
    start_detached,
)
from stele_harness.stack.lifecycle import (
    READY_FILE,
    forget_dead,
    hold,
    require_stack,
    tail_log,
    wait_ready,
)
from stele_harness.stack.stack import ServiceSpec, Stack
from tests.cli.conftest import NODES, Ran, Server, Stele, cluster
from tests.cli.test_changes import ACCEPTED
from tests.cli.test_errors import DEAD
from tests.polling import wait_until

T = TypeVar("T")
STACK: dict[str, Any] = {
    "pid": 1,
    "environment": {
        "STELE_CLUSTER": "books",
        "STELE_METADATA_LOG_URLS": "http://127.0.0.1:1,http://127.0.0.1:2",
        "STELE_COORDINATOR_URLS": "http://127.0.0.1:3",
    },
    "brokers": [{"name": "broker-1", "address": "127.0.0.1:4", "pid": 5}],
    "redis": {"url": "redis://127.0.0.1:6/0", "pid": 7},
    "services": [{"name": "n1", "url": "http://127.0.0.1:8", "pid": None, "state": "backing_off"}],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    stack_file(tmp_path)
    return tmp_path


def stack_file(directory: Path, **changed: Any) -> None:
    """Write the file of the stack above, with these fields changed."""
    (directory / STACK_FILE).write_bytes(msgspec.json.encode({**STACK, **changed}))


def answered(
    directory: Path, ask: Callable[[], T], answer: Callable[[Control], ControlAnswer]
) -> T | CliError:
    """Return what ``ask`` returns or raises once the stack has answered its question."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        questions = directory / CONTROL_DIRECTORY
        wait_until(lambda: list(questions.glob("*.question.json")), "the question")
        answer_questions(directory, answer)
        try:
            return asked.result(30)
        except CliError as error:
            return error


def test_services_are_found_in_the_stack_file(directory: Path) -> None:
    places = find_places((), directory, {})
    assert places.of("metadata-log") == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert places.of("coordinator") == ("http://127.0.0.1:3",)


def test_shell_variables_of_an_earlier_stack_give_a_hint(
    directory: Path,
) -> None:
    told = {"STELE_METADATA_LOG_URLS": "http://127.0.0.1:9"}
    places = find_places((), directory, told)
    assert places.of("metadata-log") == ("http://127.0.0.1:9",)
    assert f"not of the stack that runs in {directory}" in places.source
    assert "stele stack env" in places.source
    same = find_places((), directory, STACK["environment"])
    assert same.source == "from STELE_*_URLS"


def test_options_override_the_environment_and_it_overrides_the_stack(directory: Path) -> None:
    environment = {"STELE_URL": "b:1", "STELE_COORDINATOR_URLS": "http://c:1/"}
    assert find_places((), directory, environment).of("metadata-log") == ("http://b:1",)
    places = find_places(("http://a:1",), directory, environment)
    assert places.of("metadata-log") == ("http://a:1",)
    assert places.of("coordinator") == ("http://c:1",)


def test_dir_option_overrides_the_shell_variables(
    directory: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with a directory must not change another cluster, which `stele stack env` set in the shell."""
    theirs = {"STELE_METADATA_LOG_URLS": server.url, "STELE_COORDINATOR_URLS": server.url}
    stack_file(directory, pid=os.getpid(), environment=theirs)
    for name in ("STELE_URL", *theirs):
        monkeypatch.setenv(name, DEAD)
    server.answer("POST", "/v1/commands", ACCEPTED)
    assert run(["settings", "set", "stream_concurrency", "4", "--dir", str(directory)]) == 0
    assert len(server.asked_for("/v1/commands")) == 1


@pytest.mark.parametrize("variable", ["STELE_CATCH_UP_URLS", "STELE_KAFKA_BOOTSTRAP"])
def test_dir_option_overrides_the_shell_variables_of_other_services(
    directory: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    stack_file(directory, environment={variable: "of the stack"})
    monkeypatch.setenv("STELE_DIR", str(directory))
    assert told_or_of_stack(variable, None) == "of the stack"
    monkeypatch.setenv(variable, "of the shell")
    assert told_or_of_stack(variable, None) == "of the shell"
    assert told_or_of_stack(variable, directory) == "of the stack"


@pytest.mark.parametrize("wrong", ["http://[::1", "http://h:70000", "ftp://h:1", "http://", "h:x"])
def test_invalid_address_is_refused_with_the_expected_form(
    capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    for arguments in (["status", "--url", wrong], ["join", wrong, "--url", DEAD]):
        assert run(arguments) == 2
        assert "not an address of a service. Write http://HOST:PORT." in capsys.readouterr().err


def test_directory_holds_at_most_one_running_stack(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with hold(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(CliError, match="is already running in"), hold(tmp_path):
            pass
    assert not is_held(tmp_path)


def test_stack_file_without_a_process_is_not_a_running_stack(directory: Path) -> None:
    with pytest.raises(UnreachableError, match="No stack is running"):
        require_stack(directory)
    with hold(directory):
        assert require_stack(directory).environment["STELE_CLUSTER"] == "books"


def test_stack_status_fails_when_a_process_does_not_run(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold(directory):
        assert run(["stack", "status", "--dir", str(directory)]) == 1
    assert "backing_off" in capsys.readouterr().out


def test_stack_status_hints_at_a_running_node_that_is_no_member(
    directory: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(server, nodes=[{**NODES[0], "state": "left"}, NODES[1]])
    nodes = [{"name": name, "url": server.url, "state": "running"} for name in ("n1", "n2")]
    stack_file(directory, services=nodes, environment={"STELE_METADATA_LOG_URLS": server.url})
    with hold(directory):
        run(["stack", "status", "--dir", str(directory)])
    out = capsys.readouterr().out
    assert "n1 has left the cluster; `stele stack remove n1` deletes it." in out
    assert "n2 has left" not in out


def test_stack_status_fails_only_if_a_server_is_dead(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lives:
        address = f"127.0.0.1:{lives.getsockname()[1]}"
        redis = {"url": f"redis://{address}/0", "pid": 7}
        told = dict[str, int]()
        for name, broker in (("dead", "127.0.0.1:4"), ("lives", address)):
            brokers = [{"name": "broker-1", "address": broker, "pid": 5}]
            stack_file(directory, services=[], redis=redis, brokers=brokers)
            with hold(directory):
                told[name] = run(["stack", "status", "--json", "--dir", str(directory)])
            said = msgspec.json.decode(capsys.readouterr().out)
            state = "running" if name == "lives" else "down"
            assert (said["brokers"][0]["state"], said["redis"]["state"]) == (state, "running")
    assert told == {"dead": 1, "lives": 0}
    with hold(directory):
        assert run(["stack", "status", "--dir", str(directory)]) == 1
    assert "down" in capsys.readouterr().out


def stack_that_gave_up(directory: Path, exit_code: int, **environment: str) -> None:
    """Write a stack file whose n1 gave up with this exit code."""
    n1 = {"name": "n1", "url": "http://127.0.0.1:8", "state": "given_up", "exit_code": exit_code}
    stack_file(directory, pid=os.getpid(), services=[n1], environment=environment)
    (directory / "services" / "n1").mkdir(parents=True, exist_ok=True)
    log = directory / "services" / "n1" / "stderr.log"
    log.write_text("starting\nNot admitted: its join was cancelled.\n")


def test_stack_status_shows_why_a_process_is_not_restarted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = dict[int, str]()
    for exit_code in (78, -9):
        stack_that_gave_up(directory, exit_code)
        with hold(directory):
            assert run(["stack", "status", "--dir", str(directory)]) == 1
        said[exit_code] = capsys.readouterr().out.splitlines()[-1]
    do = "`stele stack remove n1` removes it if it is not a member, `stele stack add-node` starts another."
    for line in said.values():
        assert f": Not admitted: its join was cancelled. {do}" in line
    assert "its configuration or its data prevents a start (exit status 78)" in said[78]
    assert "more than 10 times within a minute, the last time with exit status -9" in said[-9]


def told(
    directory: Path,
    stele: Stele,
    *arguments: str,
    answer: Callable[[Control], ControlAnswer] = lambda control: ControlAnswer(name=control.name),
) -> Ran:
    """Return the output of a command on the stack, which gives this answer."""
    command = ["stack", *arguments, "--dir", str(directory)]
    with hold(directory):
        found = answered(directory, lambda: stele(*command), answer)
    assert isinstance(found, Ran)
    return found


def starting(directory: Path, stele: Stele, *arguments: str) -> Ran:
    """Return the output of a command after the stack has started n1."""
    n1 = ControlAnswer(name="n1", url="http://127.0.0.1:8")
    return told(directory, stele, *arguments, answer=lambda _: n1)


@pytest.mark.parametrize(
    "command", [("start", "n1"), ("restart", "n1"), ("add-node", "--replace", "n2", "--rack", "r3")]
)
def test_node_that_was_not_admitted_is_not_reported_as_running(
    directory: Path, stele: Stele, command: tuple[str, ...]
) -> None:
    stack_that_gave_up(directory, 78)
    ran = starting(directory, stele, *command)
    assert (ran.exit_code, ran.out) == (1, "")
    assert "Not admitted: its join was cancelled. `stele stack remove n1`" in ran.err


@pytest.mark.parametrize(
    ("state", "joins"), [("replacing", True), ("none", True), ("normal", False)]
)
def test_add_node_prints_how_to_follow_the_join(
    directory: Path, server: Server, stele: Stele, state: str, joins: bool
) -> None:
    cluster(server, nodes=[{**NODES[0], "state": state, "request_id": "join-n1"}])
    stack_file(directory, pid=os.getpid(), environment={"STELE_METADATA_LOG_URLS": server.url})
    ran = starting(directory, stele, "add-node")
    assert ran.exit_code == 0, ran.err
    follow = "`stele request follow join-n1` shows how it joins."
    assert ran.out.splitlines() == ["n1 runs at http://127.0.0.1:8", *([follow] if joins else [])]


def test_stack_env_output_is_quoted_for_the_shell(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack_file(directory, environment={"STELE_CLUSTER": "a b; exit 7"})
    with hold(directory):
        assert run(["stack", "env", "--dir", str(directory)]) == 0
    script = f'{capsys.readouterr().out}printf %s "$STELE_CLUSTER"'
    said = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    assert said.stdout == "a b; exit 7"


def test_stack_env_replaces_variables_of_another_cluster(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    known = {
        "PATH": os.defpath,
        "STELE_URL": "http://127.0.0.1:9",
        "STELE_METADATA_LOG_URLS": "http://127.0.0.1:9",
        "STELE_CONSOLE_URLS": "http://127.0.0.1:9",
    }
    script = f"{take_up(directory)}; env"
    with hold(directory):
        said = subprocess.run(
            ["bash", "-c", script],
            env=known,
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
    assert not said.stderr
    lines = said.stdout.splitlines()
    knows = dict(line.split("=", 1) for line in lines if line.startswith("STELE_"))
    assert knows == {**STACK["environment"], "STELE_DIR": str(directory)}


class Ended:
    """A process that ended with exit status 1."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int:
        return 1


def fail(_: Control) -> ControlAnswer:
    raise OSError("no port\nleft")


def refuse(_: Control) -> ControlAnswer:
    raise CliError("There is no node 'n9'.", "Known: n1.")


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (lambda control: ControlAnswer(name=f"n4 in {control.rack}"), "n4 in r2"),
        (fail, "The new node was not started: no port left"),
        (refuse, "There is no node 'n9'. Known: n1."),
    ],
)
def test_control_request_gets_the_answer_of_the_stack_process(
    tmp_path: Path, answer: Callable[[Control], ControlAnswer], line: str
) -> None:
    ask = lambda: ask_stack(tmp_path, Control(rack="r2"), deadline_s=10)  # noqa: E731
    found = answered(tmp_path, ask, answer)
    assert (found.line() if isinstance(found, CliError) else found.name).startswith(line)
    assert not list((tmp_path / CONTROL_DIRECTORY).iterdir())


def test_unanswered_control_request_is_withdrawn(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="did not answer"):
        ask_stack(tmp_path, Control(), deadline_s=0)
    assert not list((tmp_path / CONTROL_DIRECTORY).iterdir())


def test_failed_stack_start_reports_the_last_log_line(tmp_path: Path) -> None:
    (tmp_path / "stack.log").write_text("starting\nstele: No Java 17 or newer.\n\n")
    with pytest.raises(CliError) as raised:
        wait_ready(tmp_path, Ended(1), lambda _: None)
    assert "exit status 1" in raised.value.line()
    assert "No Java 17 or newer." in raised.value.line()


def test_ready_file_of_another_process_is_ignored(
    directory: Path,
) -> None:
    (directory / READY_FILE).write_text("")
    told: list[object] = []
    with pytest.raises(CliError, match="did not start"):
        wait_ready(directory, Ended(2), told.append)
    assert told == [None]
    assert wait_ready(directory, Ended(1), told.append).pid == 1


def test_foreground_start_deletes_files_of_a_killed_stack(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / READY_FILE).write_text("")
    said: list[bool] = []

    def start(_: Stack) -> None:
        said.extend((directory / name).exists() for name in (READY_FILE, STACK_FILE))
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "start", start)
    assert run_in_foreground(StackOptions(directory=directory)) == 0
    assert said == [False, False]


def test_stack_that_begins_with_a_dump_does_not_found_a_cluster(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[object]()
    was = Stack.__init__

    def made(self: Stack, *arguments: Any, **more: Any) -> None:
        given.append(more["env"])
        was(self, *arguments, **more)

    def start(_: Stack) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "__init__", made)
    monkeypatch.setattr(Stack, "start", start)
    for found in (True, False):
        options = StackOptions(directory=directory, found=found)
        assert ("--no-found" in options.arguments()) is not found
        assert run_in_foreground(options) == 0
    assert given == [{}, {"STELE_FOUND": "no"}]


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("command", ["status", "why", "requests", "watch"])
def test_commands_on_a_stopped_stack_fail_at_once(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    told: bool,
) -> None:
    """The shell may have the variables of ``stele stack env``."""
    monkeypatch.setenv("STELE_DIR", str(directory))
    for name, value in STACK["environment"].items() if told else ():
        monkeypatch.setenv(name, value)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    stack_file(directory, pid=ended.pid)
    assert run([command]) == 3
    error = capsys.readouterr().err
    assert f"is down: its process {ended.pid} has ended. `stele stack up --dir" in error
    assert "again (" not in error


def test_url_option_is_used_even_if_the_stack_is_down(directory: Path) -> None:
    stack_file(directory, pid=2**22 + 1)
    assert find_places(("http://a:1",), directory, {}).urls == {"metadata-log": ("http://a:1",)}


def test_running_stack_is_not_cleaned_up(directory: Path) -> None:
    with hold(directory), pytest.raises(CliError, match="is already running in") as raised:
        forget_dead(directory)
    assert "To have what was left out (`--without`): `stele stack down`" in raised.value.hint
    assert (directory / STACK_FILE).exists()


@pytest.mark.parametrize("cdc", [False, True])
def test_cdc_connector_is_started_only_on_request(directory: Path, cdc: bool) -> None:
    options = StackOptions(directory=directory, cdc=cdc)
    assert ("--cdc" in options.arguments()) is cdc
    names = [spec.name for spec in services_to_start(("placements",), cdc=options.cdc)]
    assert ("cdc-connector" in names) is cdc


@pytest.mark.parametrize("how", [[], ["--detach"]])
def test_stack_up_without_java_names_what_to_install(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: list[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "INSTALLED", ())
    assert run(["stack", "up", "--dir", str(tmp_path / "stack"), *how]) == 1
    error = capsys.readouterr().err
    assert "Kafka needs Java 17 or newer" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "stack" / "kafka").exists()


def test_stack_up_fails_early_if_spark_has_no_suitable_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(need: java.Need) -> java.Java:
        if need is java.KAFKA:
            return java.Java(Path("/jvm/25/bin/java"), 25)
        raise java.JavaMissing("Spark needs Java 17 to 21: no such Java.")

    monkeypatch.setattr(foreground, "find_java", find)
    with pytest.raises(CliError) as raised:
        start_detached(StackOptions(directory=tmp_path))
    assert "--without placements" in raised.value.hint
    assert java_notes(StackOptions(directory=tmp_path, without=("placements",))) == []
    assert not (tmp_path / "stack.log").exists()


def test_stack_with_refused_nodes_is_up_and_reports_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory of n3 was deleted. No data can be refused in a new stack."""
    for name in ("n1", "n2", "n9"):
        (directory / "services" / name).mkdir(parents=True)
        (directory / "services" / name / "node.json").write_text("{}")
    both = [{**STACK["services"][0], "name": name} for name in ("n1", "n2", "n3", "coordinator")]
    stack_file(directory, services=both)
    stack, asked = read_stack_file(directory), list[str]()
    assert stack is not None

    def settled(_: Path, name: str, limit_s: float) -> str:
        asked.append(name)
        if name == "n1":
            raise CliError("n1 does not run: it is older.", "Bring it back.")
        return ""

    monkeypatch.setattr(foreground, "spawn_detached", lambda _: None)
    monkeypatch.setattr(foreground, "wait_ready", lambda *_: stack)
    monkeypatch.setattr(foreground, "settle", settled)
    assert start_detached(StackOptions(directory=directory, without=("placements",))) == 1
    assert "n1 does not run: it is older. Bring it back." in capsys.readouterr().err
    assert asked == ["n1", "n2", "n3"]
    shutil.rmtree(directory / "services")
    assert start_detached(StackOptions(directory=directory, without=("placements",))) == 0


def test_stack_logs_of_an_unknown_process_lists_known_names(tmp_path: Path) -> None:
    (tmp_path / "services" / "n1").mkdir(parents=True)
    (tmp_path / "services" / "n1" / "stderr.log").write_text("one\ntwo\nthree\n")
    assert tail_log(tmp_path, "n1", 2) == ["two", "three"]
    with pytest.raises(CliError) as raised:
        tail_log(tmp_path, "n9", 2)
    assert "n1" in raised.value.hint
    with pytest.raises(CliError, match="No stack is running in"):
        tail_log(tmp_path / "other", "n1", 2)


def test_replacing_node_gets_the_dc_and_rack_of_the_replaced_node(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has them. The directory of the replaced node may be lost with its disk."""
    stack = Stack(tmp_path, nodes=3)
    started = list[ServiceSpec]()
    monkeypatch.setattr(stack, "node_names", lambda: ("n1", "n2", "n3", "n4"))
    monkeypatch.setattr(stack, "start_services", started.extend)
    monkeypatch.setattr(stack, "url", lambda name: f"http://{name}")
    with pytest.raises(CliError, match="no metadata-log answers"):
        add_node(stack, Control(replace="n4"))
    cluster(server, nodes=[{**NODES[0], "node_id": "n4", "dc": "dc2", "rack": "r2"}])
    stack_file(tmp_path, environment={"STELE_METADATA_LOG_URLS": server.url})
    add_node(stack, Control(replace="n4"))
    add_node(stack, Control(replace="n4", rack="r9"))
    places = [(spec.env["STELE_DC"], spec.env["STELE_RACK"]) for spec in started]
    assert places == [("dc2", "r2"), ("dc2", "r9")]


@pytest.mark.parametrize(("state", "refused"), [("normal", True), ("left", False)])
def test_member_is_removed_from_a_stack_only_with_force(
    directory: Path, server: Server, stele: Stele, state: str, refused: bool
) -> None:
    cluster(server, nodes=[{**NODES[0], "state": state}])
    stack_file(directory, environment={"STELE_METADATA_LOG_URLS": server.url})
    if refused:
        with hold(directory):
            ran = stele("stack", "remove", "n1", "--dir", str(directory))
    else:
        ran = told(directory, stele, "remove", "n1")
    assert ran.exit_code == (1 if refused else 0), ran.err
    assert ("`stele decommission n1`" in ran.err) is refused


@pytest.mark.parametrize(("deed", "name"), [("stop", "n1"), ("kill", "n1"), ("kill", "redis")])
def test_stop_and_kill_print_the_start_command_of_the_same_stack(
    directory: Path, stele: Stele, deed: str, name: str
) -> None:
    ran = told(directory, stele, deed, name)
    assert f"`stele stack start {name} --dir {directory}`" in ran.out


def test_start_without_a_terminal_prints_its_steps(directory: Path) -> None:
    out = Console(file=io.StringIO(), force_terminal=False, width=200)
    (directory / READY_FILE).write_text("")
    tell = Teller(out)
    for now in (None, None, read_stack_file(directory), read_stack_file(directory)):
        tell(now)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().splitlines() == [
        "starting Kafka and Redis",
        "Kafka and Redis are up; starting n1",
    ]
