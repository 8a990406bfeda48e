"""``stele import describe|read``: describe a Cassandra or ScyllaDB cluster and import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter, validators

from stele.cli.errors import UsageError
from stele.cli.output import console, counted, print_line, size

if TYPE_CHECKING:
    from stele.domain.legacy import ImportProblem, ImportResult, LegacyCluster
    from stele.domain.model.schema import AnyChange

_HINT = "docs/schemas/legacy_cluster.json defines the file; `stele import describe` writes one."

app = App(name="import", help="Import a legacy cluster of Cassandra or Scylla: describe, read.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CqlOptions:
    """How to connect over CQL."""

    username: Annotated[str, Parameter(name="--username")] = ""
    """User name, if the cluster requires one."""

    password_file: Annotated[Path | None, Parameter(name="--password-file")] = None
    """File with the password of that user."""

    timeout_s: Annotated[float, Parameter(name="--timeout", validator=validators.Number(gt=0))] = (
        10.0
    )
    """Seconds until the connection or a query times out."""

    def describe(self, contact: str) -> LegacyCluster:
        """Describe the cluster of the node at ``contact``. Raises CliError."""
        from stele.cli.legacy_driver import describe_cluster  # noqa: PLC0415 - slow import

        credentials = None
        if bool(self.username) != (self.password_file is not None):
            raise UsageError("--username and --password-file are given together or not at all.")
        if self.password_file is not None:
            password = self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
            credentials = (self.username, password)
        return describe_cluster(contact, self.timeout_s, credentials)


@app.command
def describe(
    contact: str,
    /,
    *,
    output: Annotated[Path, Parameter(name="--output")],
    cql: CqlOptions = CqlOptions(),
) -> None:
    """Write a description of a legacy cluster into a JSON file, over CQL.

    Run it where the cluster is reachable, then `stele import read --file` where the file is needed. It changes
    nothing in the legacy cluster.

    Args:
        contact: HOST[:PORT] of a node.
        output: The file to create.
    """
    from stele.cli import dumps  # noqa: PLC0415 - slow import
    from stele.domain.legacy import encode_description  # noqa: PLC0415

    dumps.check_free(output)
    legacy = cql.describe(contact)
    _print_cluster(legacy)
    written = dumps.write_bytes(output, encode_description(legacy))
    print_line(f"{size(written)} in {output}; `stele import read --file {output}` checks it")


@app.command
def read(
    *,
    output: Annotated[Path, Parameter(name="--output")],
    contact: Annotated[str, Parameter(name="--contact")] = "",
    file: Annotated[Path | None, Parameter(name="--file")] = None,
    ignore: Annotated[tuple[str, ...], Parameter(name="--ignore", negative="")] = (),
    without: Annotated[tuple[str, ...], Parameter(name="--without", negative="")] = (),
    cql: CqlOptions = CqlOptions(),
) -> int:
    """Check a legacy cluster, and write the state that it becomes in Stele into a file.

    It writes to no log: `stele found --from FILE` does. It computes the replicas of each range and compares
    them with those of the legacy cluster. Exit status 1, without a file, when a check fails or replicas differ.

    Args:
        output: The file to write; it must not exist.
        contact: HOST[:PORT] of a node of the legacy cluster, to read it over CQL.
        file: A description of the legacy cluster, from `stele import describe` or made by hand, instead.
        ignore: Address or host id of a node that is down and becomes a member all the same.
        without: A keyspace to leave out.
    """
    from stele.cli import dumps  # noqa: PLC0415 - slow import
    from stele.domain.legacy import import_cluster  # noqa: PLC0415

    dumps.check_free(output)
    if bool(contact) == (file is not None):
        raise UsageError(
            "Either --contact or --file is needed.",
            "--contact reads the cluster over CQL, --file a description of it.",
        )
    legacy = cql.describe(contact) if file is None else _read_description(file)
    schemas, wrong = _schemas(legacy, without)
    result = import_cluster(legacy, ignored=ignore, without=without, schemas=schemas)
    _print_cluster(legacy)
    _print_keyspaces(result, schemas)
    out = console()
    found = (*wrong, *result.problems, *result.differences)
    for each in found:
        out.print(str(each), soft_wrap=True, markup=False, style="red")
    if result.image is None or wrong:
        out.print(f"{counted(len(found), 'problem', 'problems')}; no file is written")
        return 1
    written = dumps.write(output, result.image)
    print_line(
        f"{size(written)} in {output}; `stele found --from {output}` begins a cluster with it", out
    )
    return 0


_CREATE_KEYSPACE: Final = re.compile(r"\A\s*CREATE\s+KEYSPACE\b[^;]*;", re.IGNORECASE)
_INCOMPLETE: Final = re.compile(r"/\*\s*Warning: ([^\n]*)")
"""Comment of the driver and of cqlsh at a table that they cannot write as CQL."""


def _schemas(
    legacy: LegacyCluster, without: tuple[str, ...]
) -> tuple[dict[str, tuple[AnyChange, ...]], list[ImportProblem]]:
    """Parse the schemas of the imported keyspaces. Return the changes and the problems."""
    from stele.domain.legacy import LOCAL, ImportProblem  # noqa: PLC0415 - slow import
    from stele.words.cql_parser import CqlError, parse_cql  # noqa: PLC0415

    found: dict[str, tuple[AnyChange, ...]] = {}
    wrong: list[ImportProblem] = []
    for keyspace in legacy.keyspaces:
        if keyspace.strategy == LOCAL or keyspace.name in without:
            continue
        # The keyspace is made from its options. Its lines stay, because errors name lines.
        text = _CREATE_KEYSPACE.sub(lambda at: "\n" * at[0].count("\n"), keyspace.schema)
        reasons = [each.rstrip(".") for each in _INCOMPLETE.findall(text)]
        try:
            changes = () if reasons else parse_cql(text)
        except CqlError as error:
            reasons, changes = [str(error).rstrip(".")], ()
        others = sorted({_object(each) for each in changes if not _is_in(each, keyspace.name)})
        reasons += [f"it has '{name}', which belongs to another keyspace" for name in others]
        remedy = (
            "Drop it there, take it out of `schema` in a description, or leave the keyspace out:"
            f" --without {keyspace.name}."
        )
        wrong += (ImportProblem(f"schema of {keyspace.name}", why, remedy) for why in reasons)
        found[keyspace.name] = () if others else changes
    return found, wrong


def _object(change: AnyChange) -> str:
    """Return the full name of the object that a change is about; of an index, that of its table."""
    name: str = getattr(change, "table", "") or getattr(change, "name", "")
    return name


def _is_in(change: AnyChange, keyspace: str) -> bool:
    return _object(change).partition(".")[0] == keyspace


def _read_description(file: Path) -> LegacyCluster:
    from stele.domain.json_documents import JsonDocumentError  # noqa: PLC0415
    from stele.domain.legacy import decode_description  # noqa: PLC0415

    try:
        return decode_description(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    except JsonDocumentError as error:
        raise UsageError(f"{file}: {error}.", _HINT) from error


def _print_cluster(legacy: LegacyCluster) -> None:
    dcs = sorted({node.dc for node in legacy.nodes})
    tokens = sum(len(node.tokens) for node in legacy.nodes)
    print_line(
        f"cluster {legacy.cluster}: {counted(len(legacy.nodes), 'node', 'nodes')} in {', '.join(dcs)},"
        f" {counted(tokens, 'token', 'tokens')}"
    )


def _print_keyspaces(result: ImportResult, schemas: Mapping[str, tuple[AnyChange, ...]]) -> None:
    for name, ranges in result.compared.items():
        if ranges:
            count = sum(each.keyspace == name for each in result.differences)
            differ = counted(count, "difference", "differences") if count else "no difference"
            objects = len(schemas.get(name, ()))
            schema = f"; {counted(objects, 'object', 'objects')} of its schema" if objects else ""
            print_line(f"keyspace {name}: {ranges} ranges compared, {differ}{schema}")
    if result.left_out:
        print_line(f"left out: {', '.join(result.left_out)}")
