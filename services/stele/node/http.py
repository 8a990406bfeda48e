"""The node's HTTP interface: data for clients, operations for other nodes, and the node's state."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.agent.admission import Advertised, Expelled
from stele.agent.agent import Agent
from stele.agent.columns import check_columns
from stele.agent.gate import Gate
from stele.agent.member import shut_out
from stele.agent.probing import (
    check_host,
    check_log,
    check_meant,
    judge_route,
    row_route,
)
from stele.domain.routed import HOST, TABLE_VERSION, MalformedRequest, Routed, table_version_of
from stele.node import metrics
from stele.node.changes import Changes
from stele.node.coordinate import Consistency, Coordination, Found, RequestRefused
from stele.node.replica import LocalReplica
from stele.node.restoring import Restorer
from stele.node.settings import MAX_VALUE_BYTES
from stele.node.store import Size, SqliteStore
from stele.node.table_rows import DataPath, content_found, place_of, rows_of, write_of
from stele.node.wire import (
    BACKUP_PATH,
    BATCH_PATH,
    DIGESTS_PATH,
    LOG_HEADER,
    MEASURE_PATH,
    PAGE_PATH,
    REPLICA_HEADER,
    decode_compare,
    decode_fetch,
    decode_ops,
    decode_scan,
    encode,
)
from stele.runtime.answers.node import KeyspaceSize, NodeView
from stele.runtime.http import ErrorCode, HttpError, JsonResponse

T = TypeVar("T")

CHANGES_LIMIT: Final = 100
MAX_CHANGES_LIMIT: Final = 10_000
SIZE_AGE_S: Final = 1.0
"""Greatest age of the shown key counts, in seconds. Counting reads every row."""


class NodeHttp:
    """The HTTP handlers of one node. Data is served only while the gate is open."""

    def __init__(
        self,
        cluster: str,
        advertised: Advertised,
        gate: Gate,
        agent: Agent,
        coordination: Coordination,
        replica: LocalReplica,
        restorer: Restorer,
        store: SqliteStore,
        changes: Changes,
    ) -> None:
        self._cluster = cluster
        self._advertised = advertised
        self._gate = gate
        self._agent = agent
        self._coordination = coordination
        self._replica = replica
        self._restorer = restorer
        self._store = store
        self._changes = changes
        self._sizes: dict[str, Size] = {}
        self._sizes_at_s = float("-inf")
        self._counting = asyncio.Lock()

    def routes(self) -> list[Route]:
        data = "/v1/data/{keyspace}/{key:path}"
        return [
            Route(data, self.put, methods=["PUT"]),
            Route(data, self.get, methods=["GET"]),
            Route(data, self.delete, methods=["DELETE"]),
            Route("/v1/node", self.node, methods=["GET"]),
            Route("/v1/cdc/changes", self.changes, methods=["GET"]),
            Route("/v1/cdc/streams", self.streams, methods=["GET"]),
            Route(BATCH_PATH, self.batch, methods=["POST"]),
            Route(PAGE_PATH, self.scan, methods=["POST"]),
            Route(MEASURE_PATH, self.scan, methods=["POST"]),
            Route(DIGESTS_PATH, self.digests, methods=["POST"]),
            Route(BACKUP_PATH, self.backup, methods=["POST"]),
            judge_route(self._replica.judge, self._check_takes),
            row_route(self._replica.judge, self._check_takes, self._check_row),
        ]

    async def put(self, request: Request) -> Response:
        value = await request.body()
        if len(value) > MAX_VALUE_BYTES:
            raise HttpError(
                413,
                ErrorCode.BODY_TOO_LARGE,
                f"The value has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}.",
                hint="Split it over several keys.",
                details={"size_bytes": len(value), "limit_bytes": MAX_VALUE_BYTES},
            )
        return await self._write(request, "put", value)

    async def delete(self, request: Request) -> Response:
        return await self._write(request, "delete", None)

    async def get(self, request: Request) -> Response:
        path, consistency, at_least = self._asked(request)

        async def read() -> tuple[Found, bytes | None]:
            place = partial(place_of, path=path)
            found = await self._coordination.read(path.name, place, consistency, at_least)
            return found, content_found(found, path)

        found, content = await _measured("get", read)
        headers = {
            "x-stele-version": str(found.version),
            "x-stele-epoch": str(found.epoch),
            "x-stele-replicas": ",".join(found.answered),
        }
        rows = rows_of(found.image, path.name)
        if rows is not None:
            headers[TABLE_VERSION] = str(rows.version)
        if content is None or found.cell is None:
            raise HttpError(
                404,
                ErrorCode.NOT_FOUND,
                f"There is no such key in '{path.name}'.",
                hint="Check the key; a deleted one is gone.",
                details={"answered": found.answered, "version": found.version},
            )
        headers["x-stele-timestamp"] = str(found.cell.timestamp)
        media_type = "application/octet-stream" if rows is None else "application/json"
        return Response(content, headers=headers, media_type=media_type)

    async def node(self, _: Request) -> Response:
        image, advertised = self._agent.image, self._advertised
        row = image.node(self._agent.node_id)
        sizes = await self._current_sizes()
        return JsonResponse(
            NodeView(
                node_id=self._agent.node_id,
                host_id=self._agent.host_id,
                cluster=self._cluster,
                dc=row.dc if row else advertised.dc,
                rack=row.rack if row else advertised.rack,
                num_tokens=row.num_tokens if row else advertised.num_tokens,
                shards=row.shards if row else advertised.shards,
                address=advertised.address,
                state=row.state if row else "unknown",
                reason=self._why_not_serving(),
                release_version=self._advertised.release_version,
                supported_features=self._advertised.supported_features,
                epoch=image.epoch,
                version=image.topology.version,
                oldest_version_in_use=self._agent.oldest_version_in_use(),
                sessions_in_use=list(self._agent.sessions_in_use()),
                keys=sum(size.keys for size in sizes.values()),
                bytes=sum(size.size_bytes for size in sizes.values()),
                keyspaces={k: KeyspaceSize(*size) for k, size in sizes.items()},
                counted_ago_s=time.monotonic() - self._sizes_at_s,
            )
        )

    async def changes(self, request: Request) -> Response:
        """Return changes of a table; see ``changes``."""
        self._check_ready()
        asked = request.query_params
        stream_id = _hex("stream", asked.get("stream", ""))
        limit = _whole("limit", asked.get("limit", str(CHANGES_LIMIT)), MAX_CHANGES_LIMIT)
        table, after = _table_of(request), asked.get("after", "")
        read = lambda: self._changes.read(table, stream_id, after, limit)  # noqa: E731
        return JsonResponse(await _measured("changes", read))

    async def streams(self, request: Request) -> Response:
        """Return the CDC streams of a table."""
        self._check_ready()
        table = _table_of(request)
        return JsonResponse(await _measured("streams", lambda: self._changes.streams(table)))

    async def batch(self, request: Request) -> Response:
        """Execute operations of another node; msgpack, see ``wire``."""
        answers = await self._replica.serve(await self._message(request, decode_ops))
        for answer in answers:
            if not answer.done:
                metrics.refused.labels(answer.code).inc()
        return _packed(answers)

    async def scan(self, request: Request) -> Response:
        """Return rows, or their size, to another node that streams."""
        return _packed(await self._replica.scan(await self._message(request, decode_scan)))

    async def digests(self, request: Request) -> Response:
        """Return digests of rows to another node that repairs."""
        return _packed(await self._replica.digests(await self._message(request, decode_compare)))

    async def backup(self, request: Request) -> Response:
        """Return a piece of a snapshot file to a node that restores."""
        return _packed(await self._restorer.give(await self._message(request, decode_fetch)))

    async def _message(self, request: Request, decode: Callable[[bytes], T]) -> T:
        """Return the message of another node to this one. Raises HttpError."""
        asked = request.headers
        self._check_ready()
        self._check_meant(
            asked.get(REPLICA_HEADER, ""), asked.get(HOST, ""), asked.get(LOG_HEADER, "")
        )
        body = await request.body()
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HttpError(
                400,
                ErrorCode.INVALID_REQUEST,
                f"The body is no message between nodes: {error}.",
                hint="These paths are for nodes of the same release; clients use /v1/data.",
            ) from error

    async def _write(self, request: Request, kind: str, body: bytes | None) -> Response:
        path, consistency, at_least = self._asked(request)
        write = partial(write_of, path=path, body=body)
        written = await _measured(
            kind, lambda: self._coordination.write(path.name, write, consistency, at_least)
        )
        version = written.table_version
        return JsonResponse(written, headers={TABLE_VERSION: str(version)} if version else None)

    def _asked(self, request: Request) -> tuple[DataPath, Consistency, int]:
        """Return path, consistency and table version of a data request. Raises HttpError."""
        self._check_ready()
        asked = request.query_params.get("consistency", Consistency.QUORUM)
        try:
            version = table_version_of(request.headers)
            return _path_of(request), Consistency(asked), version
        except MalformedRequest as error:
            raise HttpError(400, ErrorCode.INVALID_REQUEST, str(error)) from error
        except ValueError:
            raise HttpError(
                400,
                "bad_consistency",
                f"There is no consistency '{asked}'.",
                hint=f"Use one of {', '.join(Consistency)}.",
            ) from None

    def _check_meant(self, replica: str, host_id: str, log_id: str) -> None:
        """Check that a call is for this node, this host id and this log. Raises HttpError.

        A caller with an old address may mean another node, whose address this one has now. A caller
        that missed a recovery may use epochs that are lost.
        """
        check_meant(self._agent.node_id, replica)
        check_host(self._agent.node_id, self._agent.host_id, host_id)
        check_log(self._agent.image.log_id.hex(), log_id)

    def _check_takes(self, routed: Routed) -> None:
        self._check_ready()
        self._check_meant(routed.replica, routed.host_id, routed.log_id)

    def _check_row(self, routed: Routed, body: bytes) -> None:
        """Check the columns of a row, as before a write. Raises HttpError."""
        schema = self._agent.image.schema.columns_of(routed.data_id)
        if schema is not None:
            check_columns(schema, body)

    def _check_ready(self) -> None:
        out = self._shut_out()
        if out is not None:
            what_to_do = f"Ask another node. {out.hint or '/healthz says why.'}"
            raise HttpError(503, out.code, out.message, hint=what_to_do)

    def _why_not_serving(self) -> str:
        out = self._shut_out()
        return "" if out is None else f"{out.message} {out.hint}".rstrip()

    def _shut_out(self) -> Expelled | None:
        return shut_out(self._agent.node_id, self._agent.image, self._gate)

    async def _current_sizes(self) -> dict[str, Size]:
        # One count at a time: concurrent requests share it, since it reads every row.
        async with self._counting:
            now_s = time.monotonic()
            if now_s - self._sizes_at_s > SIZE_AGE_S:
                self._sizes = await self._store.sizes()
                self._sizes_at_s = now_s
                metrics.keys.set(sum(size.keys for size in self._sizes.values()))
            return self._sizes


def _table_of(request: Request) -> str:
    found = request.query_params.get("table", "")
    if not found:
        raise _bad_query("table", "", "KEYSPACE.TABLE")
    return found


def _hex(name: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise _bad_query(name, text, "the id of a stream, 32 hex digits") from None


def _whole(name: str, text: str, most: int) -> int:
    if not (text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise _bad_query(name, text, f"a whole number from 1 to {most}")
    return int(text)


def _bad_query(name: str, text: str, wanted: str) -> HttpError:
    return HttpError(
        400, ErrorCode.INVALID_REQUEST, f"{name} is '{text[:40]}'.", hint=f"Use {wanted}."
    )


def _path_of(request: Request) -> DataPath:
    """Return the keyspace or table and the key of a data request. Raises HttpError."""
    key = request.path_params["key"]
    raw_path: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    # /v1/data/KEYSPACE/KEY, and the key may have slashes.
    raw_key = raw_path.split(b"/", 4)[-1]
    try:
        unquote_to_bytes(raw_key).decode()
    except UnicodeDecodeError:
        # Starlette replaces such bytes, so that different keys would become the same one.
        raise HttpError(
            400,
            "bad_key_encoding",
            "The key in the path is not valid UTF-8.",
            hint="Send text in UTF-8, or encode the key, for example as hex digits.",
        ) from None
    return DataPath(request.path_params["keyspace"], key, raw_key)


async def _measured(kind: str, work: Callable[[], Awaitable[T]]) -> T:
    """Count and time a data request. A refusal becomes the HTTP error for it."""
    began_s, outcome = time.perf_counter(), "ok"
    try:
        return await work()
    except RequestRefused as refused:
        outcome = refused.code
        raise HttpError(
            refused.status,
            refused.code,
            refused.message,
            hint=refused.hint,
            details=refused.details,
        ) from refused
    finally:
        metrics.requests.labels(kind, outcome).inc()
        metrics.request_seconds.labels(kind).observe(time.perf_counter() - began_s)


def _packed(answer: object) -> Response:
    return Response(encode(answer), media_type="application/msgpack")
