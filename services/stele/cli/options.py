"""Options shared by commands, each group as one dataclass that cyclopts flattens."""

from __future__ import annotations

import getpass
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from cyclopts import Group, Parameter, validators
from rich.table import Table

from stele.cli.client import Client
from stele.cli.errors import TooOldError, UsageError
from stele.cli.notice import RetryNotice
from stele.cli.output import (
    counted,
    error_console,
    print_csv,
    print_fitted,
    print_line,
    print_value_as_json,
    print_yaml,
)
from stele.cli.places import find_places, stack_directory, told_by_shell
from stele.cli.reading import Level, StateReading
from stele.domain.commands import AnyCommand, Envelope
from stele.runtime.answers.metadata_log import OutcomeAnswer
from stele.runtime.request_ids import new_request_id
from stele.runtime.tokens import TOKEN_FORM
from stele.words import GivenError
from stele.words.given import SPAN_FORM, span_ms
from stele.words.operations import TEXTS

TypedDirectory = Annotated[Path | None, Parameter(name="--dir")]
Force = Annotated[bool, Parameter(name="--force", negative="")]

CONNECTION: Final = Group("Connection", sort_key=3)
CHANGES: Final = Group("Change", sort_key=2)
FROM_ONE: Final = validators.Number(gte=1)
"""Validator of epochs and counts."""
FROM_ZERO: Final = validators.Number(gte=0)
"""Validator of limits of rows; 0 shows all."""


def user_name() -> str:
    """Return the user's name. In a container a user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return f"uid-{os.getuid()}"


@Parameter(name="*", group=CONNECTION)
@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which cluster."""

    url: Annotated[tuple[str, ...], Parameter(name="--url", negative="")] = ()
    """Address of a metadata-log; may be repeated. Default: by --dir, STELE_URL, STELE_*_URLS, or .stele."""

    typed: TypedDirectory = None
    """Directory of a local stack, which wins over STELE_*_URLS. Default: STELE_DIR, else .stele."""

    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", env_var="STELE_TIMEOUT", validator=validators.Number(gt=0)),
    ] = 30.0
    """Seconds of retries until a call without an answer fails."""

    token_file: Annotated[
        Path | None, Parameter(name="--token-file", env_var="STELE_TOKEN_FILE")
    ] = None
    """File with your access token, if the cluster requires one for changes."""

    @property
    def directory(self) -> Path:
        return stack_directory(self.typed)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client of this cluster, closed at the end of the block. Raises CliError."""
        places = find_places(self.url, self.directory, told_by_shell(self.typed))
        client = Client(
            places,
            timeout_s=min(15.0, self.timeout_s),
            retry_for_s=self.timeout_s,
            notice=RetryNotice(sys.stderr),
            token=_token(self.token_file),
        )
        try:
            yield client
        finally:
            client.close()


def _token(file: Path | None) -> str:
    """Read a token from a file. Raises UsageError if it holds none."""
    if file is None:
        return ""
    found = file.read_text(encoding="utf-8", errors="replace").strip()
    if not TOKEN_FORM.fullmatch(found):
        raise UsageError(
            f"{file} holds no token: one line of letters, digits and -._~+/=.",
            "`stele token NAME FILE` makes one.",
        )
    return found


@Parameter(name="*", group=CONNECTION)
@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Which local stack, for what is done to its processes."""

    typed: TypedDirectory = None
    """Directory of a local stack. Default: STELE_DIR, else .stele."""

    @property
    def directory(self) -> Path:
        return stack_directory(self.typed)

    @property
    def again(self) -> str:
        """The option that a suggested command needs to address the same stack."""
        return f" --dir {self.typed}" if self.typed else ""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPoint:
    """At which point of the log to read."""

    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None
    """The state at this epoch; default: the newest."""

    level: Annotated[Level, Parameter(name="--level")] = "barrier"
    """local: the service's state; barrier: at least all commits so far; linearizable: proven by a commit."""

    def of(self, client: Client) -> StateReading:
        """Return a reader of the state at this point of the log."""
        return StateReading(client, self.epoch, self.level)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Json:
    """How to show an answer that is no list."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the answer as JSON."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How to show a list."""

    output: Annotated[
        Literal["table", "wide", "json", "yaml", "csv"], Parameter(name=("--output", "-o"))
    ] = "table"
    """table fits the terminal; wide has whole ids and unbroken lines; csv has the table's columns."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Short for -o json."""

    @property
    def is_document(self) -> bool:
        """True for JSON and YAML, which have all fields."""
        return self.as_json or self.output in ("json", "yaml")

    @property
    def shortens(self) -> bool:
        """True if ids may be shortened, because a person reads them."""
        return self.output == "table"

    def print_document(self, value: object) -> None:
        """Print a value as JSON or YAML."""
        if self.output == "yaml":
            print_yaml(value)
        else:
            print_value_as_json(value)

    def print_table(self, shown: Table) -> None:
        """Print a table as it was asked for."""
        if self.output == "csv":
            print_csv(shown)
        else:
            print_fitted(shown, wide=self.output == "wide")

    def note(self, text: str) -> None:
        """Print a line beside a table. CSV has none."""
        if self.output != "csv":
            print_line(text)

    def note_more(self, count: int, what: str) -> None:
        """Print that ``--limit`` left out ``count`` rows, if any: ``3 more tablets``."""
        if count > 0:
            self.note(f"{counted(count, what, f'{what}s')}: --limit 0 shows all.")


@Parameter(name="*", group=CHANGES)
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The author and the reason of a change, for the history."""

    reason: Annotated[str, Parameter(name="--reason")] = ""
    """The reason for the history."""

    actor: Annotated[str, Parameter(name="--actor", env_var="STELE_ACTOR")] = ""
    """The actor for the history; default: the token's owner, or without a token the user's name."""

    request_id: Annotated[str, Parameter(name="--request-id")] = ""
    """The id of a request whose outcome is unknown. Sent again, it takes effect once."""

    def envelope(self, command: AnyCommand) -> Envelope:
        """Return the envelope of a command, with this change's request id or a new one."""
        return Envelope(
            request_id=self.request_id or new_request_id(),
            command=command,
            actor=self.actor or user_name(),
            reason=self.reason,
            origin="cli",
        )

    def send(self, client: Client, command: AnyCommand) -> OutcomeAnswer:
        """Print the request id and send a command, as ``submit``.

        The id comes first: if no answer arrives, the user sends the same id again.
        """
        envelope = self.envelope(command)
        print_line(f"request {envelope.request_id}")
        return self.submit(client, envelope)

    def submit(self, client: Client, envelope: Envelope) -> OutcomeAnswer:
        """Send a command. The returned outcome has the request id that counts. Raises CliError.

        If the log takes no id of this time, for example after ids from a clock that was ahead, the
        command gets a newer id. An id given by the user stays: its command may have been decided
        long ago. With a token and without --actor, the actor is the token's owner.
        """
        if client.has_token and not self.actor:
            envelope = msgspec.structs.replace(envelope, actor="")
        try:
            outcome = client.submit(envelope)
        except TooOldError as error:
            if self.request_id:
                raise
            request_id = new_request_id(horizon_ms=error.horizon_ms)
            envelope = msgspec.structs.replace(envelope, request_id=request_id)
            print_line(
                f"request {request_id} in its place: the log has forgotten ids that are newer than the clock"
            )
            outcome = client.submit(envelope)
        return msgspec.structs.replace(outcome, request_id=envelope.request_id)


@Parameter(name="*", group=CHANGES)
@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedChange(Change):
    """A change that services carry out after it was accepted, such as a topology request."""

    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True
    """Follow the request until it ends."""


@Parameter(name="*", group=CHANGES)
@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedChange(Change):
    """A change of the schema, which is in effect at a member once the member has applied it."""

    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True
    """Wait until all live members have applied the change."""

    wait_s: Annotated[int, Parameter(name="--wait-s", validator=FROM_ZERO)] = 10
    """Longest wait, in seconds. After it the change is done, and the members that are behind are named."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to show what a command would do."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the coordinator's answer as JSON."""

    bytes_per_s: Annotated[
        float | None, Parameter(name="--rate", validator=validators.Number(gt=0))
    ] = None
    """Bytes per second that a node receives; default: the rate measured last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning(FollowedChange):
    """A change that is only planned."""

    as_json: bool
    bytes_per_s: float | None


Yes = Annotated[
    bool,
    Parameter(
        name="--yes",
        negative="",
        help="Do not ask for the name. Required without a terminal.",
    ),
]


def confirm(change: Change, what: str, name: str, *, yes: bool) -> None:
    """Ask for ``name`` unless ``yes`` is given, or the change is only planned. Raises UsageError.

    ``what`` says what would happen, for example ``All data of shop is deleted.``.
    """
    if yes or isinstance(change, Planning):
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} Nothing is done without --yes.", "Add --yes in a script.")
    out = error_console()
    print_line(f"{what} There is no way back.", out)
    if out.input(f"Type {name} to continue: ", markup=False).strip() != name:
        raise UsageError("That is not its name: nothing was done.")


F = TypeVar("F", bound=Callable[..., object])


def described(name: str, *others: str, **fields: str) -> Callable[[F], F]:
    """Give a command the help text of an operation and of its fields.

    The command's own docstring follows as a further paragraph. Fields of the operations ``others``
    count too. ``fields`` are the names of fields by parameter, where the table does not lead from
    one to the other.
    """
    text, *more = (TEXTS[each] for each in (name, *others))

    def with_help(command: F) -> F:
        parts = [f"{text.title}.", text.about, inspect.cleandoc(command.__doc__ or "")]
        helped = dict[str, str]()
        for parameter in inspect.signature(command).parameters:
            found = (each.field_of(fields.get(parameter, parameter)) for each in (text, *more))
            if (field := next(filter(None, found), None)) is not None:
                helped[parameter] = f"    {parameter}: {field.sentence}"
        parts.append("\n".join(["Args:", *helped.values()]))
        command.__doc__ = "\n\n".join(filter(None, parts))
        return command

    return with_help


def moment_ms(text: str, option: str, now_ms: int) -> int:
    """Parse a moment into milliseconds since 1970, in the local time zone unless it names one.

    Errors name ``option``. Raises UsageError.
    """
    with suppress(GivenError):
        return now_ms - span_ms(text, option)
    try:
        return round(1000 * datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{option} '{text}' is neither a span of time nor a time.",
            f"{SPAN_FORM} Or write a time: 2026-11-22 or '2026-11-22 08:30'.",
        ) from error
