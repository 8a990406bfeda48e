"""``stele put`` and ``stele get``: data, through any node that answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from stele.cli.client import NO_ANSWER, Client, decode, refusal_of
from stele.cli.errors import CliError, RefusedError, UnreachableError, UsageError
from stele.cli.lean import httpx
from stele.cli.options import Where
from stele.cli.output import error_console, joined, size
from stele.cli.reading import Reading
from stele.domain.names import OWNS_TOKENS
from stele.runtime.answers.errors import ErrorBody

Consistency = Literal["one", "quorum", "all"]


class Written(msgspec.Struct, frozen=True):
    """A node's answer to PUT."""

    timestamp: int
    version: int
    epoch: int
    acks: tuple[str, ...] = ()


def put(
    keyspace: str,
    key: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    consistency: Annotated[Consistency, Parameter(name="--consistency")] = "quorum",
    where: Where = Where(),  # noqa: B008
) -> None:
    """Write a value.

    Args:
        keyspace: KEYSPACE.TABLE, or a keyspace without tablets.
        key: Its key.
        file: The file that holds the value; - reads standard input.
        consistency: How many replicas must have it before it counts.
    """
    value = _read(file)
    with where.client() as client:
        answer = through_any_node(client, "PUT", keyspace, key, consistency, value)
    written = decode(answer.content, Written)
    error_console().print(
        f"{size(len(value))} written at {written.timestamp}: version {written.version}, "
        f"epoch {written.epoch}, acknowledged by {joined(written.acks)}"
    )


def get(
    keyspace: str,
    key: str,
    /,
    *,
    consistency: Annotated[Consistency, Parameter(name="--consistency")] = "quorum",
    where: Where = Where(),  # noqa: B008
) -> None:
    """Read a value to standard output.

    Args:
        keyspace: KEYSPACE.TABLE, or a keyspace without tablets.
        key: Its key.
        consistency: How many replicas must have answered.
    """
    with where.client() as client:
        answer = through_any_node(client, "GET", keyspace, key, consistency, None)
    sys.stdout.buffer.write(answer.content)
    sys.stdout.buffer.flush()


def through_any_node(
    client: Client,
    method: str,
    keyspace: str,
    key: str,
    consistency: Consistency,
    value: bytes | None,
) -> httpx.Response:
    """The first answer of a member; members that do not answer are passed over.

    Raises CliError: what a member said, if one did, before that another could not be reached, and that the
    outcome is unknown before that a later one refused.
    """
    nodes = Reading(client, level="local").nodes()
    addresses = [node.address for node in nodes if node.state in OWNS_TOKENS]
    path = data_path(keyspace, key)
    refused: CliError | None = None
    away = CliError("The cluster has no member that serves data.", "Add a node: `stele join`.")
    for address in addresses:
        try:
            url = address.rstrip("/") + path
            answer = client.send(method, url, value, consistency=consistency)
        except NO_ANSWER as error:
            away = UnreachableError(
                f"{address} does not answer ({error}).", "`stele status` shows who is up."
            )
            continue
        if answer.is_success:
            return answer
        if answer.status_code == httpx.codes.NOT_FOUND and not _is_about_a_key(answer):
            raise RefusedError(
                f"The store at {address} takes no `stele put` and no `stele get`: 404 for {path}.",
                "They speak to the store for trials: ask a store of your own by its own clients.",
            )
        if not isinstance(refused, UnreachableError):
            refused = refusal_of(answer)
        if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
            break
    raise refused or away


def _is_about_a_key(answer: httpx.Response) -> bool:
    """Whether a 404 comes from a store that knows such paths, and not the key: an unknown path is named."""
    try:
        return "path" not in msgspec.json.decode(answer.content, type=ErrorBody).details
    except msgspec.MsgspecError:
        return False


def data_path(keyspace: str, key: str) -> str:
    """The path of a value at a node."""
    return f"/v1/data/{quote(keyspace, safe='')}/{quote(key)}"


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
