"""The body of ``POST /v1/schema``: changes of the schema as objects or as CQL."""

import msgspec

from stele.domain.commands import AlterSchema
from stele.domain.schema.model import AnyChange
from stele.metadata_log.api import CommandRequest
from stele.metadata_log.questions import invalid
from stele.runtime.http import HttpError
from stele.words.cql_parser import CqlError, parse_cql


class SchemaRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of the schema, applied in one epoch or not at all; the other fields as in a command.

    The changes are ``changes`` or the statements in ``cql``. ``schema_version`` is the epoch of the
    schema version that they were made for; 0 for any.
    """

    changes: tuple[AnyChange, ...] = ()
    cql: str = ""
    schema_version: int = 0
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""

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
