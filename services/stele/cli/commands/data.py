"""``stele put``, ``get`` and ``delete``: data, through any node that answers."""

from __future__ import annotations

import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from stele.cli.client import NO_ANSWER, Client, decode, refusal_of
from stele.cli.errors import CliError, RefusedError, UnreachableError, UsageError
from stele.cli.options import Where
from stele.cli.output import error_console, joined, size
from stele.cli.reading import StateReading
from stele.domain.names import OWNS_TOKENS
from stele.runtime.answers.common import ErrorBody

if TYPE_CHECKING:
    import httpx

Consistency = Literal["one", "quorum", "all"]


class PutAnswer(msgspec.Struct, frozen=True):
    """A node's answer to PUT."""

    timestamp: int
    version: int
    epoch: int
    acks: tuple[str, ...] = ()


def put(
    table: str,
    key: str,
    value: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    file: Annotated[str, Parameter(name="--file", allow_leading_hyphen=True)] = "",
    consistency: Annotated[Consistency, Parameter(name="--consistency")] = "quorum",
    where: Where = Where(),
) -> None:
    """Write a value, or columns of a row.

    Args:
        table: KEYSPACE.TABLE, or a keyspace without tablets.
        key: The key; the columns of a primary key are separated by slashes.
        value: The value, or a JSON object of columns; - reads standard input.
        file: A file with the value; - reads standard input.
        consistency: Replicas that must acknowledge the write.
    """
    if (value is None) == (not file):
        raise UsageError(
            "put needs either a value or a file.",
            "stele put KEYSPACE.TABLE KEY VALUE, - for standard input, or --file FILE.",
        )
    content = value.encode() if value not in (None, "-") else _read(file or "-")
    with where.client() as client:
        answer = through_any_node(client, "PUT", table, key, consistency, content)
    _tell(f"{size(len(content))} written", decode(answer.content, PutAnswer))


def delete(
    table: str,
    key: str,
    /,
    *,
    consistency: Annotated[Consistency, Parameter(name="--consistency")] = "quorum",
    where: Where = Where(),
) -> None:
    """Delete a value or row. It is no error if there is none.

    Args:
        table: KEYSPACE.TABLE, or a keyspace without tablets.
        key: The key, as for put.
        consistency: Replicas that must acknowledge the delete.
    """
    with where.client() as client:
        answer = through_any_node(client, "DELETE", table, key, consistency, None)
    _tell("deleted", decode(answer.content, PutAnswer))


def _tell(done: str, written: PutAnswer) -> None:
    error_console().print(
        f"{done} at {written.timestamp}: version {written.version}, "
        f"epoch {written.epoch}, acknowledged by {joined(written.acks)}"
    )


def get(
    table: str,
    key: str,
    /,
    *,
    consistency: Annotated[Consistency, Parameter(name="--consistency")] = "quorum",
    where: Where = Where(),
) -> None:
    """Print a value to standard output, byte for byte, or a row of a table with columns as JSON.

    Args:
        table: KEYSPACE.TABLE, or a keyspace without tablets.
        key: The key, as for put.
        consistency: Replicas that must answer.
    """
    with where.client() as client:
        answer = through_any_node(client, "GET", table, key, consistency, None)
    sys.stdout.buffer.write(answer.content)
    if answer.headers.get("content-type") == "application/json":  # a row, and not any bytes
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def through_any_node(
    client: Client,
    method: str,
    keyspace: str,
    key: str,
    consistency: Consistency,
    value: bytes | None,
) -> httpx.Response:
    """Return the first answer of a member to a request about a key; see ``ask_any_node``."""
    return ask_any_node(client, method, data_path(keyspace, key), value, consistency=consistency)


def ask_any_node(
    client: Client, method: str, path: str, content: bytes | None = None, **params: object
) -> httpx.Response:
    """Return the first answer of a member. Members that do not answer are skipped.

    Raises CliError. A refusal by a member takes precedence over another member's connection error.
    An unknown outcome takes precedence over a later refusal.
    """
    nodes = StateReading(client, level="local").nodes()
    addresses = [node.address for node in nodes if node.address and node.state in OWNS_TOKENS]
    refused: CliError | None = None
    away = CliError("The cluster has no member that serves data.", "Add a node: `stele join`.")
    for address in addresses:
        try:
            url = address.rstrip("/") + path
            answer = client.send(method, url, content, **params)
        except NO_ANSWER as error:
            away = UnreachableError(
                f"{address} does not answer ({error}).", "`stele status` shows who is up."
            )
            continue
        if answer.is_success:
            return answer
        if answer.status_code == HTTPStatus.NOT_FOUND and not _is_about_a_key(answer):
            raise RefusedError(
                f"The store at {address} does not serve `stele put`, `get`, `delete` and `cdc tail`:"
                f" 404 for {path}.",
                "These commands use the API of the trial store. Use the clients of your own store.",
            )
        if not isinstance(refused, UnreachableError):
            refused = refusal_of(answer)
        # A status below 500 rejects the request itself: other members would reject it too.
        if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            break
    raise refused or away


def _is_about_a_key(answer: httpx.Response) -> bool:
    """Return True if a 404 is about the key. A store that lacks the path names the path instead."""
    try:
        return "path" not in msgspec.json.decode(answer.content, type=ErrorBody).details
    except msgspec.MsgspecError:
        return False


def data_path(keyspace: str, key: str) -> str:
    """Return the path of a value at a node."""
    # HTTP clients remove the segments "." and "..", so that the path would name another key.
    segments = (
        each.replace(".", "%2E") if each in {".", ".."} else quote(each) for each in key.split("/")
    )
    return f"/v1/data/{quote(keyspace, safe='')}/{'/'.join(segments)}"


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
