"""``stele``: assembles the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnusedCliTokensError

from stele.cli.errors import CliError, Exit

_COMMANDS = "stele.cli.commands"
_LAZY: tuple[tuple[str, str, str], ...] = (
    ("status", "status:status", "The cluster at a glance."),
    ("nodes", "nodes:nodes", "All nodes: state, place, share of the ring, liveness."),
    ("ring", "ring:ring", "Ranges and the replicas that read and write them."),
    ("requests", "requests:requests", "Topology requests and how they stand."),
    ("request", "requests:app", "One request: show, follow."),
    ("why", "why:why", "What is being waited for, who blocks it and since when."),
    ("epochs", "epochs:epochs", "The history: what changed, who asked, why."),
    ("epoch", "epochs:app", "One epoch: show."),
    ("diff", "epochs:diff", "What differs between two epochs."),
    ("watch", "watch:watch", "Epochs as they happen."),
    ("console", "console:console", "The page that shows it all: its address."),
    ("state", "state:app", "The whole state as a file: export, check."),
    ("found", "founding:found", "Make the cluster: the first epoch of an empty log."),
    ("unsafe", "unsafe:app", "Override the state of a frozen log: revert, load."),
    ("import", "legacy:app", "Take over a legacy cluster of Cassandra or Scylla: read."),
    ("recover", "recover:recover", "Go on from what is left of a log that was lost."),
    ("join", "topology:join", "Ask for a node to become a member."),
    ("replace", "topology:replace", "Have a new node take the place of a dead one."),
    ("decommission", "topology:decommission", "Have a node hand over its data and leave."),
    ("move", "topology:move", "Give a node other tokens while it serves."),
    ("rebuild", "topology:rebuild", "Stream again what a node should have."),
    ("remove", "topology:remove", "Do without a node that is dead for good."),
    ("exclude", "topology:exclude", "Declare nodes dead, so that nothing waits for them."),
    (
        "plan",
        "plan:app",
        "What a command, or the tablet balancer with --file, would do: nothing is done.",
    ),
    ("cancel", "topology:cancel", "Undo a request before its point of no return."),
    ("cleanup", "global_requests:cleanup", "Have nodes delete data that is not their own."),
    ("truncate", "global_requests:truncate", "Delete all data of a table or keyspace."),
    ("quiesce", "global_requests:quiesce", "Wait until what was asked for has come to rest."),
    ("noop", "global_requests:noop", "Wait until the coordinator has seen all up to here."),
    ("cdc", "cdc:app", "CDC generations: list, their streams, make a new one."),
    ("keyspace", "keyspace:app", "Keyspaces: create, alter, drop, list."),
    ("table", "table:app", "Tables: create, alter, drop, list."),
    ("tablet", "tablet:app", "Tablets: list, move."),
    ("balance", "balance:app", "How tablets are spread: status, plan, why; off, on; history."),
    ("features", "features:app", "Features: list, enable, forget a service."),
    ("settings", "settings:app", "Settings of the cluster: list, set, reset."),
    ("id", "ids:make_id", "A new request id, to send a command again under after a time-out."),
    ("token", "token:token", "Make a token for somebody who may change the cluster."),
    ("put", "data:put", "Write a value."),
    ("get", "data:get", "Read a value."),
    (
        "log",
        "log:app",
        "The log itself: tail, search, stats, replay; snapshot, truncate, readers, verify; freeze,"
        " single-user, thaw.",
    ),
    (
        "catch-up",
        "catch_up:app",
        "Replicas that keep the archive of the log: show, reconfigure, forget.",
    ),
    ("sql", "sql:sql", "Ask the tables of the service placements in SQL."),
    ("backup", "backup:app", "Back up the metadata: all epochs and the newest snapshot; verify."),
    ("restore", "backup:restore", "Make a catch-up replica's folder from a backup."),
    (
        "stack",
        "stack:app",
        "A whole cluster on this machine: up, status, logs, env, down; stop, start, restart, kill one process;"
        " add-node, remove.",
    ),
    (
        "sim",
        "sim:app",
        "The deterministic simulator: run, sweep, mutants; live, on real processes.",
    ),
    ("completion", "completion:completion", "Have Tab complete commands and options."),
    (
        "conformance",
        "conformance:conformance",
        "Hold an agent, in any language, against the contract of nodes.",
    ),
    ("demo", "demo:demo", "A real cluster under load, with what happened."),
    (
        "drill",
        "demo:drill",
        "A log that is lost under load, and recovered: what was lost, how long.",
    ),
)


def build_app(called: str = "") -> App:
    """The whole command line. A command's module is imported when it is called.

    The command ``called`` has its own text, which says more than its line in the list of all. That list is read
    as plain text: what reads Markdown takes as long to import as all the rest.
    """
    app = App(
        name="stele",
        help="Metadata of a sharded data store as one ordered log of epochs.",
        help_format="markdown" if called else "plaintext",
        help_on_error=False,
    )
    for name, place, text in _LAZY:
        app.command(f"{_COMMANDS}.{place}", name=name, help=None if name == called else text)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code, of ``errors.Exit``."""
    try:
        called = next((word for word in arguments if not word.startswith("-")), "")
        result = build_app(called)(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CliError as error:
        _say(error.line())
        return error.exit_code
    except CycloptsError as error:
        _say(f"{_wrong(error)} {_usage(error)}")
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nobody is left to be told
        return Exit.OK
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{error.filename}: {error.strerror}.")  # no room, no right, no such folder
        return Exit.FAILED
    return result if isinstance(result, int) else Exit.OK


def _wrong(error: CycloptsError) -> str:
    """What is wrong with the command line, as a sentence."""
    if isinstance(error, UnusedCliTokensError):
        words = ["stele", *(error.command_chain or ())]
        return f"`{' '.join(words)}` does not take '{' '.join(error.unused_tokens or ())}'."
    return " ".join(str(error).split())


def _usage(error: CycloptsError) -> str:
    """How the command is written, as far as the error knows which one was meant."""
    words = ["stele", *(error.command_chain or ())]
    parameters = inspect.signature(error.target).parameters if error.target else {}
    arguments = [p.name.upper() for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    written = f"Write `{' '.join([*words, *arguments])}`. " if arguments else ""
    return f"{written}See `{' '.join(words)} --help`."


def _say(line: str) -> None:
    from rich.text import Text  # noqa: PLC0415  (only where something went wrong)

    from stele.cli.output import error_console  # noqa: PLC0415

    error_console().print(Text.assemble(("stele: ", "bold red"), line), soft_wrap=True)
