"""``stele``: assembles the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Final

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.examples import examples
from stele.words import GivenError
from stele.words.operations import TEXTS

_COMMANDS = "stele.cli.commands"
_HARNESS = ("stele_harness.", "stele_simulator.")
"""Packages of the distribution stele-harness: what only tests and trials need."""
MOST_EXAMPLES: Final = 2


def _operation(name: str, place: str) -> tuple[str, str, str]:
    return name, place, f"{TEXTS[name].title}."


_LAZY: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Cluster": (
        ("status", "status:status", "Show the epoch, the members and the open operations."),
        ("why", "why:why", "Explain what each request waits for."),
        ("requests", "requests:requests", "List topology requests."),
        ("request", "requests:app", "Show or follow one request."),
        _operation("cancel", "topology:cancel"),
        ("quiesce", "topology:quiesce", "Wait until all earlier requests have ended."),
        ("noop", "topology:noop", "Wait until the coordinator has read the log so far."),
        ("settings", "settings:app", "List and change settings."),
        ("features", "features:app", "List and enable features."),
        ("token", "access:token", "Make an access token."),
        ("id", "requests:make_id", "Make a request id."),
        ("console", "access:console", "Print the address of the web console."),
    ),
    "Nodes and topology": (
        ("nodes", "nodes:nodes", "List nodes with state, place, liveness and data."),
        ("ring", "ring:ring", "List ranges of the ring and their replicas."),
        _operation("join", "topology:join"),
        _operation("decommission", "topology:decommission"),
        _operation("replace", "topology:replace"),
        _operation("remove", "topology:remove"),
        _operation("exclude", "topology:exclude"),
        _operation("move", "topology:move"),
        _operation("rebuild", "topology:rebuild"),
        _operation("cleanup", "topology:cleanup"),
        ("plan", "plan:app", "Show what a command would do, and do nothing."),
    ),
    "Data placement": (
        ("tablet", "tablet:app", "List, move and restore tablets."),
        ("balance", "balance:app", "Show and control the tablet balancer."),
    ),
    "Schema and data": (
        ("keyspace", "keyspace:app", "List, create, alter and drop keyspaces."),
        ("table", "table:app", "List, create, alter, drop, repair and snapshot tables."),
        ("schema", "schema:app", "Show, compare and apply columns and types."),
        ("cdc", "cdc:app", "List CDC generations and streams, and follow the changes of a table."),
        _operation("truncate", "topology:truncate"),
        ("put", "data:put", "Write a value."),
        ("get", "data:get", "Read a value."),
        ("delete", "data:delete", "Delete a value."),
    ),
    "Log and recovery": (
        ("epochs", "epochs:epochs", "List the history: what changed, who asked, why."),
        ("epoch", "epochs:app", "Show one epoch with its facts."),
        ("diff", "epochs:diff", "Compare the states at two epochs."),
        ("watch", "epochs:watch", "Print epochs as they are committed."),
        ("log", "log:app", "Search, check, freeze and truncate the log."),
        ("catch-up", "catch_up:app", "Manage the replicas of the log's archive."),
        ("backup", "backup:app", "Back up the metadata, and verify a backup."),
        ("restore", "backup:restore", "Restore a backup for a catch-up replica."),
        ("recover", "recover:recover", "Continue a log whose topic was lost."),
        ("found", "founding:found", "Create the cluster in an empty log."),
        ("state", "state:app", "Export the whole state to a file, and check one."),
        ("import", "legacy:app", "Import a cluster of Cassandra or ScyllaDB."),
        ("unsafe", "state:unsafe", "Override the state of a frozen log."),
    ),
    "Analysis": (("sql", "sql:sql", "Query the tables of the history in SQL."),),
    "Local development": (
        ("stack", "stele_harness.stack.command:app", "Run a whole cluster on this machine."),
        ("demo", "stele_harness.demo.command:demo", "Run a real cluster under load, and report."),
        ("drill", "stele_harness.demo.command:drill", "Lose a log under load, and recover it."),
        ("sim", "stele_simulator.command:app", "Run the deterministic simulator."),
        (
            "conformance",
            "stele_harness.conformance.command:conformance",
            "Test an agent against the contract of nodes.",
        ),
        ("completion", "access:completion", "Install Tab completion in the shell."),
    ),
}


def build_app(called: str = "", epilogue: str | None = None) -> App:
    """Return the whole command line. A command's module is imported when the command is called.

    The command ``called`` has its own help text, which is longer than its line in the list. The
    list is parsed as plain text, because a Markdown parser takes as long to import as all other
    modules.
    """
    app = App(
        name="stele",
        help="Metadata of a sharded data store as one ordered log of epochs.",
        help_format="markdown" if called else "plaintext",
        help_on_error=False,
        help_epilogue=epilogue,
        default_parameter=Parameter(show_default=_shown_default),
    )
    for order, (title, commands) in enumerate(_LAZY.items()):
        group = Group(title, sort_key=order)
        for at, (name, place, text) in enumerate(commands):
            shown: dict[str, Any] = {"name": name, "group": group, "sort_key": at}
            help_ = None if name == called else text
            if not place.startswith(_HARNESS):
                app.command(f"{_COMMANDS}.{place}", help=help_, **shown)
            elif find_spec(place.partition(".")[0]) is not None:
                app.command(place, help=help_, **shown)
            else:
                app.command(_not_installed(name), help=f"{text} Not installed.", **shown)
    return app


def _not_installed(name: str) -> Callable[..., None]:
    """Return a command that says how to install the harness."""

    def refuse(*_: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
        raise CliError(
            f"`stele {name}` is in the package stele-harness, which is not installed.",
            "Install it in the folder of your clone: pip install . ./tests/harness",
        )

    return refuse


def _shown_default(value: Any) -> str | None:
    """Return a default for the help; None for one that means nothing to a user."""
    return None if value in ("", (), False, None) else "on" if value is True else str(value)


def _epilogue(arguments: Sequence[str]) -> str | None:
    """Return the examples of the command that is called with --help."""
    words = [*itertools.takewhile(lambda word: not word.startswith("-"), arguments)]
    found = examples(*words)[:MOST_EXAMPLES] if words else []
    return "\n".join(["Examples:", "```", *found, "```"]) if found else None


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code, of ``errors.Exit``."""
    try:
        called = next((word for word in arguments if not word.startswith("-")), "")
        _check_text(arguments)
        result = build_app(called, _epilogue(arguments))(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CliError as error:
        _say(error.line())
        return error.exit_code
    except (CycloptsError, GivenError) as error:
        hint = error.hint if isinstance(error, GivenError) else _usage(error)
        _say(f"{_wrong(error)} {hint}")
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe has closed it: no output is possible
        return Exit.OK
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{error.filename}: {error.strerror}.")  # disk full, no permission, no such folder
        return Exit.FAILED
    return result if isinstance(result, int) else Exit.OK


def _check_text(arguments: Sequence[str]) -> None:
    """Check that the arguments are text. Raises UsageError."""
    try:
        "".join(arguments).encode()
    except UnicodeEncodeError:
        raise UsageError(
            "An argument is not valid UTF-8.",
            "Write it in UTF-8. A value can be any bytes: `stele put TABLE KEY --file FILE`.",
        ) from None


def _wrong(error: CycloptsError | GivenError) -> str:
    """Return the error of a command line as a sentence."""
    if isinstance(error, UnusedCliTokensError):
        words = ["stele", *(error.command_chain or ())]
        return f"`{' '.join(words)}` does not take '{' '.join(error.unused_tokens or ())}'."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        words = ["stele", *(error.command_chain or ())]
        name = error.argument.name
        wanted = f"a value for {name}" if name.startswith("-") else name
        return f"`{' '.join(words)}` needs {wanted}."
    return " ".join(str(error).split())


def _usage(error: CycloptsError) -> str:
    """Return the usage of the command, as far as the error names the command."""
    words = ["stele", *(error.command_chain or ())]
    parameters = inspect.signature(error.target).parameters if error.target else {}
    arguments = [p.name.upper() for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    written = f"Write `{' '.join([*words, *arguments])}`. " if arguments else ""
    if isinstance(error, UnknownOptionError) and "--dry-run" in str(error):
        written = "`stele plan` shows what a command would do. "
    return f"{written}See `{' '.join(words)} --help`."


def _say(line: str) -> None:
    from rich.text import Text  # noqa: PLC0415  (only where something went wrong)

    from stele.cli.output import error_console, print_line  # noqa: PLC0415

    print_line(Text.assemble(("stele: ", "bold red"), line), error_console())
