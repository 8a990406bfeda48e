"""Options that many commands share, each group as one dataclass that cyclopts flattens."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter, validators

from stele.cli.client import Client
from stele.cli.errors import TooOldError, UsageError
from stele.cli.notice import RetryNotice
from stele.cli.output import console
from stele.cli.places import find_places, stack_directory, told_by_shell
from stele.cli.reading import Level, Reading
from stele.domain.commands import AnyCommand, Envelope
from stele.metadata_log.api import OutcomeAnswer
from stele.runtime.request_ids import new_request_id
from stele.runtime.tokens import TOKEN_FORM

TypedDirectory = Annotated[Path | None, Parameter(name="--dir")]
Force = Annotated[bool, Parameter(name="--force", negative="")]

FROM_ONE: Final = validators.Number(gte=1)
"""Epochs and counts."""
FROM_ZERO: Final = validators.Number(gte=0)
"""How many are shown, 0 being all."""


def user_name() -> str:
    """Who runs this. In a container a user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return f"uid-{os.getuid()}"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which cluster."""

    url: Annotated[tuple[str, ...], Parameter(name="--url", negative="")] = ()
    """Address of a metadata-log; may be repeated. Else that of --dir, STELE_URL, STELE_*_URLS, or .stele."""

    typed: TypedDirectory = None
    """Directory of a local stack, before all STELE_*_URLS; else STELE_DIR, else .stele."""

    timeout_s: Annotated[
        float,
        Parameter(name="--timeout", env_var="STELE_TIMEOUT", validator=validators.Number(gt=0)),
    ] = 30.0
    """Seconds until an unanswered call is given up."""

    token_file: Annotated[
        Path | None, Parameter(name="--token-file", env_var="STELE_TOKEN_FILE")
    ] = None
    """File with the token of who changes something, where the cluster asks for one."""

    @property
    def directory(self) -> Path:
        return stack_directory(self.typed)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of this cluster, closed at the end of the block. Raises CliError."""
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
    """Raises UsageError for a file that holds none."""
    if file is None:
        return ""
    found = file.read_text(encoding="utf-8", errors="replace").strip()
    if not TOKEN_FORM.fullmatch(found):
        raise UsageError(
            f"{file} holds no token: one line of letters, digits and -._~+/=.",
            "`stele token NAME FILE` makes one.",
        )
    return found


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Which local stack, for what is done to its processes."""

    typed: TypedDirectory = None
    """Directory of a local stack; else STELE_DIR, else .stele."""

    @property
    def directory(self) -> Path:
        return stack_directory(self.typed)

    @property
    def again(self) -> str:
        """How a command that is shown says the same."""
        return f" --dir {self.typed}" if self.typed else ""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """At which point of the log to read, and how to show it."""

    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None
    """The state as it was at this epoch; default: the newest."""

    level: Annotated[Level, Parameter(name="--level")] = "barrier"
    """local: what the service has; barrier: all that is committed now; linearizable: proven."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """What is shown as JSON."""

    def of(self, client: Client) -> Reading:
        """The state at this point of the log."""
        return Reading(client, self.epoch, self.level)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Json:
    """How to show an answer that belongs to no epoch."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """What is shown as JSON."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Who changes something, and why: it becomes part of the history."""

    reason: Annotated[str, Parameter(name="--reason")] = ""
    """Why; shown in the history."""

    actor: Annotated[str, Parameter(name="--actor", env_var="STELE_ACTOR")] = ""
    """Who; default: whose token it is, else the user's name."""

    request_id: Annotated[str, Parameter(name="--request-id")] = ""
    """The id of a request whose outcome is unknown, to send it again: it takes effect once."""

    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True
    """Follow the request until it is finished."""

    def envelope(self, command: AnyCommand) -> Envelope:
        """The command under this change's request id, or a new one."""
        return Envelope(
            request_id=self.request_id or new_request_id(),
            command=command,
            actor=self.actor or user_name(),
            reason=self.reason,
            origin="cli",
        )

    def submit(self, client: Client, envelope: Envelope) -> OutcomeAnswer:
        """Send it; under a newer id of ours where the log takes none of this one's time, as after ids from a
        clock that was ahead. The answer has the id that counts. Raises CliError.

        An id that was given stays: what it stands for may have been decided long ago. A token says whose it is.
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
            console().print(
                f"request {request_id} in its place: the log has forgotten ids that are newer than the clock",
                soft_wrap=True,
                highlight=False,
            )
            outcome = client.submit(envelope)
        return msgspec.structs.replace(outcome, request_id=envelope.request_id)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to show what a command would do."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """The coordinator's answer as JSON."""

    bytes_per_s: Annotated[
        float | None, Parameter(name="--rate", validator=validators.Number(gt=0))
    ] = None
    """Bytes that a node receives in a second; default: as measured when data moved last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning(Change):
    """A change that is only planned."""

    as_json: bool
    bytes_per_s: float | None
