"""``stele import read``: a cluster of Cassandra or Scylla as a state to begin a cluster with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from stele.cli.errors import UsageError
from stele.cli.output import console, counted, size

if TYPE_CHECKING:
    from stele.domain.legacy.importing import Imported
    from stele.domain.legacy.joined import Joined

app = App(name="import", help="Take over a legacy cluster of Cassandra or Scylla: read it.")


@app.command
def read(
    *,
    output: Annotated[Path, Parameter(name="--output")],
    status: Annotated[Path | None, Parameter(name="--status")] = None,
    ring: Annotated[Path | None, Parameter(name="--ring")] = None,
    cluster: Annotated[Path | None, Parameter(name="--describecluster")] = None,
    describering: Annotated[tuple[str, ...], Parameter(name="--describering", negative="")] = (),
    schema: Annotated[Path | None, Parameter(name="--schema")] = None,
    peers: Annotated[tuple[Path, ...], Parameter(name="--peers", negative="")] = (),
    contact: Annotated[str, Parameter(name="--contact")] = "",
    ignore: Annotated[tuple[str, ...], Parameter(name="--ignore", negative="")] = (),
    without: Annotated[tuple[str, ...], Parameter(name="--without", negative="")] = (),
    timeout_s: Annotated[
        float, Parameter(name="--timeout", validator=validators.Number(gt=0))
    ] = 10.0,
) -> int:
    """Read a legacy cluster, check it, and write the state that it becomes here into a file.

    Nothing is written to any log: that is `stele found --from FILE`. The replicas that are computed here are
    compared with those that the cluster itself tells of; any difference is shown, and nothing is written then.
    Exit status 1 when something stands against the import.

    Args:
        output: The file to write; it must not be there yet.
        status: What `nodetool status` prints.
        ring: What `nodetool ring` prints.
        cluster: What `nodetool describecluster` prints.
        describering: KEYSPACE=FILE: what `nodetool describering KEYSPACE` prints; for each keyspace.
        schema: Rows of system_schema.keyspaces, where describecluster does not tell of keyspaces: as
            `SELECT JSON *` in cqlsh prints them, or as CSV with a header.
        peers: Rows of system.peers, system.peers_v2 or system.local, to compare; the same forms.
        contact: HOST[:PORT] of a node to read over CQL instead; --status may be given too.
        ignore: Address or host id of a node that is down, and a member all the same.
        without: A keyspace that is left out.
        timeout_s: Seconds until a query over CQL is given up.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import
    from stele.domain.legacy.importing import imported  # noqa: PLC0415

    dumps.check_free(output)
    if contact:
        if ring or cluster or describering or schema or peers:
            raise UsageError("--contact reads all but the status itself.", "Leave the files out.")
        found = _of_contact(contact, timeout_s, status)
    else:
        found = _of_texts(ring, status, cluster, describering, schema, peers)
    result = imported(found.legacy, ignored=ignore, without=without)
    problems = (*found.problems, *result.problems)
    _say(found, result, over_cql=bool(contact))
    out = console()
    for each in (*problems, *result.differences):
        out.print(str(each), soft_wrap=True, markup=False, style="red")
    if problems or result.image is None:
        against = counted(len(problems) + len(result.differences), "thing stands", "things stand")
        out.print(f"{against} against the import; nothing is written")
        return 1
    written = dumps.write(output, result.image)
    out.print(
        f"{size(written)} in {output}; `stele found --from {output}` begins a cluster with it",
        soft_wrap=True,
        markup=False,
    )
    return 0


def _of_texts(
    ring: Path | None,
    status: Path | None,
    cluster: Path | None,
    describering: tuple[str, ...],
    schema: Path | None,
    peers: tuple[Path, ...],
) -> Joined:
    from stele.cli.legacy_files import of_files  # noqa: PLC0415

    if ring is None or status is None or cluster is None:
        raise UsageError(
            "--status, --ring and --describecluster are all needed, or --contact.",
            "Each is a file with what nodetool prints under that name.",
        )
    return of_files(ring, status, cluster, describering, schema, peers)


def _of_contact(contact: str, timeout_s: float, status: Path | None) -> Joined:
    from stele.cli.legacy_driver import of_contact  # noqa: PLC0415 - the driver takes long too
    from stele.cli.legacy_files import of_file  # noqa: PLC0415
    from stele.domain.legacy.joined import Joined  # noqa: PLC0415
    from stele.domain.legacy.texts.status import parse_status  # noqa: PLC0415

    rows = None if status is None else of_file(status, parse_status)
    return Joined(of_contact(contact, timeout_s, rows), ())


def _say(found: Joined, result: Imported, *, over_cql: bool) -> None:
    legacy, out = found.legacy, console()
    dcs = sorted({node.dc for node in legacy.nodes})
    tokens = sum(len(node.tokens) for node in legacy.nodes)
    out.print(
        f"cluster {legacy.cluster}: {counted(len(legacy.nodes), 'node', 'nodes')} in {', '.join(dcs)},"
        f" {counted(tokens, 'token', 'tokens')}",
        soft_wrap=True,
        markup=False,
    )
    by = "of the driver" if over_cql else "of describering"
    for name, ranges in result.compared.items():
        apart = sum(each.keyspace == name for each in result.differences)
        if ranges:
            differ = f"{counted(apart, 'difference', 'differences')}" if apart else "no difference"
            out.print(f"keyspace {name}: {ranges} ranges {by} compared, {differ}", soft_wrap=True)
    if result.left_out:
        out.print(f"left out: {', '.join(result.left_out)}", soft_wrap=True, markup=False)
