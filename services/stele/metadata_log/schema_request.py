"""``POST /v1/schema``: changes of the schema as objects or as CQL, and the wait for agreement."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from stele.domain.commands import AlterSchema
from stele.domain.model.schema import AnyChange
from stele.metadata_log.questions import invalid
from stele.runtime.answers.metadata_log import CommandRequest, OutcomeAnswer
from stele.runtime.answers.session_guard import (
    AGREEMENT_PATH,
    LONGEST_AGREEMENT_S,
    SchemaAgreement,
)
from stele.runtime.http import HttpError
from stele.runtime.transport import FAILURES, Transport, answer_of
from stele.words.cql_parser import CqlError, parse_cql

MARGIN_S: Final = 2
"""Time for the answer of a session-guard after its own limit, in seconds."""


class SchemaRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of the schema, applied in one epoch or not at all; the other fields as in a command.

    The changes are ``changes`` or the statements in ``cql``. ``schema_version`` is the epoch of the
    schema version that they were made for; 0 for any. The answer comes when all live members have
    applied the changes, at the latest after ``wait_s`` seconds; with ``no_wait`` when the changes
    are in the log.
    """

    changes: tuple[AnyChange, ...] = ()
    cql: str = ""
    schema_version: int = 0
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""
    wait_s: Annotated[int, Meta(ge=0, le=LONGEST_AGREEMENT_S)] = 10
    no_wait: bool = False

    def command_request(self) -> CommandRequest:
        """Return the request as a command. Raises HttpError for a body without changes or with wrong CQL."""
        if bool(self.changes) is bool(self.cql):
            raise invalid(
                "the body has no changes, or has both changes and cql", "Send one of them."
            )
        try:
            changes = (*self.changes, *parse_cql(self.cql))
        except CqlError as error:
            raise HttpError(
                400,
                "bad_cql",
                f"The CQL is not valid: {error}.",
                hint="Correct that place.",
                details={"line": error.line, "column": error.column},
            ) from None
        return CommandRequest(
            command=AlterSchema(changes, self.schema_version),
            request_id=self.request_id,
            actor=self.actor,
            reason=self.reason,
            origin=self.origin,
            log_id=self.log_id,
        )


class SchemaOutcome(OutcomeAnswer, frozen=True, kw_only=True):
    """The outcome of a change. ``agreed``: whether all live members have applied it.

    ``behind`` names those that have not. ``agreed`` is null if the request did not wait, or if no
    session-guard answered. The change is done in each case.
    """

    agreed: bool | None = None
    behind: tuple[str, ...] = ()


Agreement = Callable[[int, int], Awaitable[SchemaAgreement | None]]
"""Waits for the agreement about an epoch, with a limit in seconds; see ``Guards``."""


class Guards:
    """The session-guards, which know from acks what each member has applied."""

    def __init__(self, urls: Sequence[str], transport: Transport) -> None:
        self._urls = urls
        self._transport = transport

    async def agreement(self, epoch: int, wait_s: int) -> SchemaAgreement | None:
        """Wait until all live members have applied ``epoch``, for at most ``wait_s``.

        Return None if no session-guard answers.
        """
        asked = {"epoch": str(epoch), "timeout_s": str(wait_s)}
        for url in self._urls:
            try:
                found = await answer_of(
                    self._transport, f"{url}{AGREEMENT_PATH}", wait_s + MARGIN_S, asked
                )
                if found.ok:
                    return msgspec.json.decode(found.body, type=SchemaAgreement)
            except (*FAILURES, msgspec.MsgspecError):
                continue
        return None
