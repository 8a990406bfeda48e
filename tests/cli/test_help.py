"""``stele --help``: the list of commands, the help of each command, and the imported modules."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from stele.cli.examples import examples
from stele.cli.main import _LAZY, build_app
from stele.coordinator.http import openapi as of_coordinator
from stele.domain import commands
from stele.metadata_log.openapi import openapi as of_metadata_log
from stele.runtime.answers.tablet_balancer import BalanceState
from stele.words.operations import TEXTS
from tests.cli.conftest import Server, Stele, at, cluster, request
from tests.cli.test_changes import ACCEPTED
from tests.cli.test_tables import balance
from tests.docs.pages import REPOSITORY, pages

COMMANDS = sorted(name for name in build_app() if not name.startswith("-"))

SMALL = {
    "Cluster": (
        ("keyspace", "keyspace:app", "Keyspaces."),
        ("completion", "access:completion", "Completion."),
    )
}
"""A few commands. The script for all of them takes seconds."""

IMPORTED = """
    import sys
    from stele.cli.main import run
    code = run(sys.argv[1:])
    print(*sorted(sys.modules), file=sys.stderr)
    sys.exit(code)
"""


FOLDING = {"confluent_kafka", "fastavro", "numpy", "cassandra", "stele.domain.registry"}
"""Packages for commands that read the log themselves."""
HEAVY = {
    "aiohttp",
    "click",
    "faust",
    "markdown_it",
    "pygments",
    "pydantic",
    "redis",
    "requests",
    "rich._emoji_codes",
    "rich.live",
    "rich.markdown",
    "rich.progress",
    "rich.traceback",
    "stamina",
    "trio",
    "uvicorn",
}
"""Packages that a read of the cluster must not import. It should take at most 0.4 s."""


def imported_by(*arguments: str) -> set[str]:
    """Return the modules that a successful command line has imported."""
    command = [sys.executable, "-c", textwrap.dedent(IMPORTED), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    return {*ran.stderr.split()}


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("schema plan wanted.cql", "--reason"),
        ("schema plan wanted.cql", "--request-id"),
        ("settings reset stream_mib_per_s", "--no-wait"),
        ("balance on", "--no-wait"),
    ],
)
def test_options_of_changes_without_effect_are_unknown(
    stele: Stele, command: str, option: str
) -> None:
    """A plan is no change, and a change with immediate effect has no end to wait for."""
    ran = stele.exits(2, *command.split(), option, *["why"] * (option != "--no-wait"))
    assert option in ran.err
    assert option not in stele.ok(*command.split(), "--help").out


def test_help_lists_every_command_with_a_summary(stele: Stele) -> None:
    shown = stele.ok("--help")
    listed = [line.strip("│ ").partition("  ") for line in shown.out.splitlines()]
    texts = {name: text.strip() for name, _, text in listed if name}
    assert all(texts[name] for name in COMMANDS)
    assert texts["status"] == "Show the epoch, the members and the open operations."


def test_every_command_is_documented_on_a_page() -> None:
    text = "".join((REPOSITORY / page).read_text() for page in pages())
    assert not [name for name in COMMANDS if not re.search(rf"\bstele {name}\b", text)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_usage_and_text(stele: Stele, name: str) -> None:
    shown = stele.ok(name, "--help")
    usage, _, text, *_ = shown.out.splitlines()
    assert usage.startswith(f"Usage: stele {name}")
    assert text.strip()


@pytest.mark.parametrize("name", sorted(n for n in build_app("stack")["stack"] if n[0] != "-"))
def test_stack_commands_take_no_options_of_remote_calls(stele: Stele, name: str) -> None:
    shown = stele("stack", name, "--help")
    assert "--dir" in shown.out
    assert "--url" not in shown.out and "--timeout" not in shown.out


def test_help_of_a_command_has_more_than_the_summary(stele: Stele) -> None:
    assert (
        "Exit status 0 when every member is up and a coordinator answers"
        in stele("status", "--help").out
    )
    assert "Exit status 0 only when every check held." in stele("demo", "--help").out


def called(command: str) -> list[tuple[str, ...]]:
    """Return a command and all its subcommands."""

    def below(app: App, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if app.default_command is not None:
            yield path
        for name in app:
            if not name.startswith("-"):
                yield from below(app[name], (*path, name))

    return [*below(build_app(command)[command], (command,))]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_two_valid_examples(name: str) -> None:
    for path in called(name):
        found = examples(*path)
        assert len(found) >= 2, path
        for line in found:
            words = shlex.split(line)[1:]
            command, *_ = build_app(name).parse_args(words, exit_on_error=False, print_error=False)
            assert command is not None, line


@pytest.mark.parametrize("name", COMMANDS)
def test_positional_arguments_cannot_be_given_as_options(name: str) -> None:
    for path in called(name):
        app = build_app(name)
        for word in path:
            app = app[word]
        loose = [
            argument.name
            for argument in app.assemble_argument_collection()
            if argument.field_info.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            and argument.names != ("*",)
            and not argument.keys
            and argument.name.startswith("--")
        ]
        assert not loose, path


def test_help_shows_examples_after_the_options(stele: Stele) -> None:
    shown = stele("stack", "up", "--help").out
    assert [line.strip() for line in shown.splitlines() if line.strip()][-3:] == [
        "Examples:",
        "stele stack up",
        "stele stack up --detach --nodes 4 --without placements",
    ]


def test_commands_are_listed_in_groups(stele: Stele) -> None:
    titles = re.findall(r"^╭─ ([A-Z][a-z ]+) ─", stele("--help").out, flags=re.MULTILINE)
    assert titles[-7:] == [*_LAZY]


def test_completion_is_installed_by_one_command(
    stele: Stele, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bash itself is not run. The test completes a command as bash does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("stele.cli.main._LAZY", SMALL)
    ran = stele.ok("completion", "bash")
    (script,) = tmp_path.glob(".local/share/bash-completion/completions/stele")
    assert str(script) in ran.out
    assert str(script) in (tmp_path / ".bashrc").read_text()
    asked = "COMP_WORDS=(stele keyspace cr); COMP_CWORD=2; _stele; echo ${COMPREPLY[@]}"
    bash = ["bash", "-c", f". {script}; {asked}"]
    completed = subprocess.run(bash, capture_output=True, text=True, timeout=240, check=True)
    assert completed.stdout.split() == ["create"]


@pytest.mark.parametrize("name", TEXTS)
def test_help_and_api_documents_share_the_texts_of_operations(
    stele: Stele, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    text = TEXTS[name]
    shown = stele(*text.line.split(), "--help").out
    wanted = (f"{text.title}.", text.about, *(field.sentence for field in text.fields))
    assert not [each for each in wanted if each not in shown]
    (described,) = _descriptions(of_metadata_log(), text.command)
    assert described == f"{text.title}. {text.about}"
    assert {*_descriptions(of_coordinator(), text.command)} <= {described}


def _descriptions(document: dict[str, Any], tag: str) -> list[str]:
    """Descriptions of the command with a tag, in an OpenAPI document.

    Changes of a batch have tags that commands have too.
    """
    known = {command.__name__ for command in commands.COMMANDS}
    return [
        schema["description"]
        for name, schema in document["components"]["schemas"].items()
        if name in known and schema["properties"].get("type", {}).get("enum") == [tag]
    ]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_no_module_of_commands(flag: str) -> None:
    found = imported_by(flag)
    ours = {name for name in found if name.split(".")[0] == "stele"}
    texts = {"stele.words", "stele.words.operations"}
    assert ours == {"stele", "stele.cli", "stele.cli.main", "stele.cli.errors"} | texts | {
        "stele.cli.examples"
    }
    heavy = {"httpx", "markdown_it", "msgspec", "numpy", "pygments", "rich.markdown"}
    assert not heavy & found


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--json"],
        ["nodes"],
        ["ring"],
        ["requests"],
        ["request", "show", "join-n3-1"],
        ["keyspace", "list"],
        ["settings", "list"],
        ["features", "list"],
        ["cdc", "generations"],
        ["table", "list"],
        ["epoch", "show", "7"],
        ["diff", "6", "7"],
        ["epochs", "--last", "1"],
        ["epochs", "--actor", "ada"],
        ["decommission", "n1", "--no-wait"],
        ["why"],
        ["balance", "status"],
        ["log", "tail", "--last", "1"],
        ["log", "search", "--json"],
        ["log", "stats", "--json"],
    ],
)
def test_commands_that_call_services_do_not_import_the_fold(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    cluster(server, requests=[request("pending")])
    server.answer("GET", "/v1/settings", {**at(7), "features": [], "settings": {}})
    server.answer("GET", "/v1/services", {**at(7), "services": []})
    server.answer("GET", "/v1/cdc/generations", {**at(7), "cdc_generations": []})
    server.answer("GET", "/v1/epochs", [{"epoch": 7, "command": "noop", "facts": []}])
    found = {"newest": 7, "looked_at": 7, "next_before": 0, "epochs": []}
    server.answer("GET", "/v1/epochs/search", found)
    counted = {"newest": 7, "next_from": 0, "losers": 0, "strays": 0, "stats": {}}
    server.answer("GET", "/v1/epochs/stats", counted)
    server.answer("GET", "/v1/tables", {**at(7), "tables": []})
    server.answer("GET", "/v1/epochs/7", {"epoch": 7, "command": "noop", "facts": []})
    server.answer("GET", "/v1/diff", {"from": 6, "to": 7})
    server.answer("GET", "/v1/balance", balance(BalanceState.BALANCED))
    server.answer("POST", "/v1/commands", ACCEPTED)
    monkeypatch.setenv("STELE_URL", server.url)
    monkeypatch.setenv("STELE_TABLET_BALANCER_URLS", server.url)
    monkeypatch.setenv("STELE_DIR", str(tmp_path))
    assert (FOLDING | HEAVY) & imported_by(*arguments) == set()


def test_command_process_runs_garbage_collection_rarely() -> None:
    """Collecting imported modules every 700 objects and at the end takes a sixth of the time."""
    script = """
        import atexit, gc, sys
        from stele.cli.__main__ import main
        sys.argv[1:] = ["--version"]
        atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count()))
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    every, frozen = (int(word) for word in ran.stdout.split()[-2:])
    assert every >= 10_000
    assert frozen >= 10_000


def test_command_of_the_missing_harness_names_the_package_to_install(
    stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.cli.main.find_spec", lambda name: None)
    shown = stele.exits(1, "conformance", "--", "true", "--flag")
    assert "stele-harness, which is not installed. Install it" in " ".join(shown.err.split())
