"""A generated cluster: a state of any size, its epochs, and their server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import numpy as np
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.cluster import ClusterCreated
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.ring import NodeNumbered, RingImage
from stele.domain.model.schema import Keyspace, KeyspaceChanged, Table, TableChanged, tablet_map
from stele.domain.names import PARTITIONER, NodeState
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.view import epoch_view
from stele.metadata_log.pages import dump_of
from stele.runtime.http import Health, HttpError, JsonResponse, bind, build_app, serving

LOG_ID = bytes(range(16))
TABLE = "t1"
REPLICAS = 3


def large_image(nodes: int, tablets: int) -> Image:
    """Return a state of ``nodes`` in two datacentres with five racks, and a table with ``tablets``."""
    image = apply_facts(
        EMPTY_FOR_FOLLOWERS, [ClusterCreated("demo", "demo/1", PARTITIONER, LOG_ID.hex(), "")]
    )
    members = [
        Node(
            node_id=f"n{n}",
            address=f"http://127.0.0.1:1/n{n}",
            dc=f"dc{n % 2 + 1}",
            rack=f"r{n // 2 % 5 + 1}",
            num_tokens=1,
            state=NodeState.NORMAL,
            tokens=(MIN_TOKEN + 1 + n * ((1 << 64) // nodes),),
        )
        for n in range(nodes)
    ]
    keyspace = Keyspace(
        keyspace_id="k1", name="shop", replication={"dc1": REPLICAS}, placement="", tablets=True
    )
    table = Table(table_id=TABLE, keyspace_id="k1", name="orders", placement=tablet_map(TABLE))
    facts: list[AnyFact] = [
        *(NodeChanged(node) for node in members),
        *(NodeNumbered(n, node.node_id) for n, node in enumerate(members)),
        KeyspaceChanged(keyspace),
        TableChanged(table),
    ]
    image = apply_facts(image, facts)
    placed = _placement(image, tablets)
    ring = RingImage(image.ring.placements.set(tablet_map(TABLE), placed), image.ring.nodes)
    return msgspec.structs.replace(image, ring=ring, epoch=1, state_id=bytes(15) + b"\1")


def _placement(image: Image, tablets: int) -> Placement:
    width = (1 << 64) // tablets
    starts = np.arange(tablets, dtype=np.int64) * np.int64(width) + np.int64(MIN_TOKEN) - 1
    starts[0] = MIN_TOKEN
    nodes = len(image.ring.nodes.names)
    first = np.random.default_rng(7).integers(0, nodes, tablets)
    replicas = np.stack([(first + 7 * at) % nodes for at in range(REPLICAS)], axis=1)
    return Placement.at_rest(starts, replicas.astype(np.int32), image.ring.nodes)


class Generated:
    """Answers of a metadata-log to a console. ``tell`` appends an epoch, and ``away`` makes it unavailable."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.log_id = image.log_id
        self.epochs: dict[int, Epoch] = {}
        self.images = {image.epoch: image}
        self.away = False
        self.streams = 0
        """The number of streams that were opened."""
        self.dumps = 0
        self._moved = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def tell(self, epoch: Epoch, after: Image) -> None:
        """Append in the thread of the server."""
        self.epochs[epoch.epoch] = epoch
        self.images[epoch.epoch] = self.image = after
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def tell_beside(self, epoch: Epoch, after: Image) -> None:
        """Append from another thread."""
        assert self.loop is not None, "it is served"
        self.loop.call_soon_threadsafe(self.tell, epoch, after)

    def forget(self, image: Image) -> None:
        """Begin another history with this state."""
        self.epochs, self.images, self.image = {}, {image.epoch: image}, image
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def routes(self) -> list[Route]:
        return [Route("/v1/dump", self._dump), Route("/v1/epochs", self._epochs)]

    async def _dump(self, request: Request) -> Response:
        self._check(request)
        self.dumps += 1
        asked = int(request.query_params.get("epoch", self.image.epoch))
        body = await asyncio.to_thread(dump_of, self.images[asked])
        return Response(body, media_type="avro/binary")

    async def _epochs(self, request: Request) -> Response:
        self._check(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            after = int(request.headers["last-event-id"])
            known = self.images.get(after)
            if known is None or known.state_id.hex() != request.query_params["state_id"]:
                raise HttpError(410, "other_history", "This is another log.")
            return EventSourceResponse(self._stream(after), ping=10)
        first, limit = int(request.query_params["from"]), int(request.query_params["limit"])
        found = [self.epochs[n] for n in range(first, first + limit) if n in self.epochs]
        return JsonResponse([epoch_view(epoch) for epoch in found])

    async def _stream(self, at: int) -> AsyncIterator[bytes]:
        image = self.image
        self.streams += 1
        while not self.away:
            moved = self._moved
            while at + 1 in self.epochs:
                at += 1
                data = msgspec.json.encode(epoch_view(self.epochs[at]))
                yield b"id: %d\nevent: epoch\ndata: %s\n\n" % (at, data)
            if image.epoch not in self.images:
                return
            await moved.wait()

    def _check(self, request: Request) -> None:
        if self.away:
            raise HttpError(503, "unavailable", "It is away.")
        if request.query_params.get("log_id", self.log_id.hex()) != self.log_id.hex():
            raise HttpError(410, "other_history", "This is another log.")


@asynccontextmanager
async def served(generated: Generated) -> AsyncIterator[str]:
    """Yield the address of the server."""
    generated.loop = asyncio.get_running_loop()
    app = build_app("generated", generated.routes(), lambda: Health(ok=True, epoch=1))
    async with serving(app, bind("127.0.0.1", 0), grace_s=0) as url:
        yield url


@contextmanager
def served_beside(generated: Generated) -> Iterator[str]:
    """Serve in a thread, for tests without an event loop."""
    found: list[str] = []
    ready, end = threading.Event(), threading.Event()

    async def run() -> None:
        async with served(generated) as url:
            found.append(url)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30), "the generated cluster did not start"
    try:
        yield found[0]
    finally:
        end.set()
        thread.join(30)
