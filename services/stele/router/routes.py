"""From a name and a key to replicas: pure functions of one image. A look-up is a bisection."""

import msgspec

from stele.domain.image import Image
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.placement import Placement
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import Routed
from stele.router.errors import UnknownName


class Place(msgspec.Struct, frozen=True):
    """Where a node is reached, and where it stands."""

    node_id: str
    address: str
    dc: str
    rack: str


class Replicas(msgspec.Struct, frozen=True, gc=False):
    """The replicas of one key, and what a request to them has to carry.

    ``version`` and ``epoch`` let a replica judge the request (``docs/agent.md``); ``data_id`` names the data
    itself, so that what was dropped or truncated away is not met under the same name.
    """

    name: str
    data_id: str
    token: int
    key: bytes
    row: RangeReplicas
    image: Image

    def __repr__(self) -> str:
        """Without the image, which is all of the cluster."""
        return (
            f"Replicas(name={self.name!r}, key={self.key!r}, reads={self.reads!r},"
            f" writes={self.writes!r}, version={self.version}, epoch={self.epoch})"
        )

    @property
    def version(self) -> int:
        """The topology version by which these were chosen."""
        return self.image.topology.version

    @property
    def epoch(self) -> int:
        return self.image.epoch

    @property
    def log_id(self) -> str:
        """The log that was read, 32 hex digits."""
        return self.image.log_id.hex()

    @property
    def reads(self) -> tuple[str, ...]:
        """Nodes that serve reads, the primary first."""
        return self.row.reads

    @property
    def writes(self) -> tuple[str, ...]:
        """Nodes that receive writes: those of ``reads`` and, while the range moves, those it comes from or
        goes to.
        """
        return self.row.writes

    def headers(self, place: Place) -> dict[str, str]:
        """What a request to this one of them carries, as HTTP headers; ``stele.agent`` reads them."""
        routed = Routed(
            version=self.version,
            epoch=self.epoch,
            data_id=self.data_id,
            token=self.token,
            replica=place.node_id,
            log_id=self.log_id,
        )
        return routed.headers()

    def place(self, node_id: str) -> Place:
        """Of one of these nodes."""
        node = self.image.membership.nodes[node_id]
        return Place(node.node_id, node.address, node.dc, node.rack)

    def written(self, acks: set[str]) -> bool:
        """Whether a quorum write may be acknowledged: a quorum of both sides while the range moves."""
        return write_satisfied(acks, self.row)

    def read(self, answers: set[str]) -> bool:
        """Whether these answers are a read quorum: one of them has all that was acknowledged."""
        return read_satisfied(answers, self.row)


class Named(msgspec.Struct, frozen=True):
    """What serves requests under a name."""

    name: str
    data_id: str
    placement: Placement


def named(image: Image, name: str) -> Named:
    """Of a keyspace without tablets, or of a table ``keyspace.table``. Raises UnknownName."""
    serving = image.schema.serving(name)
    placement = None if serving is None else image.ring.placements.get(serving.placement)
    if serving is None or placement is None:
        raise UnknownName(_why_unknown(image, name))
    return Named(name, serving.data_id, placement)


def replicas_of(image: Image, found: Named, key: bytes) -> Replicas:
    token = token_of(key)
    row = found.placement.row_for(token)
    return Replicas(found.name, found.data_id, token, key, row, image)


def _why_unknown(image: Image, name: str) -> str:
    keyspace = image.schema.named(name)
    at = f"at epoch {image.epoch}"
    if keyspace is not None and keyspace.dropped_version:
        return f"Keyspace '{name}' is being dropped {at}."
    if keyspace is not None:
        tables = ", ".join(f"{name}.{t.name}" for t in image.schema.tables_of(keyspace)) or "none"
        return (
            f"Keyspace '{name}' has tablets: its data is in its tables. Ask for one of: {tables}."
        )
    what = "table" if "." in name else "keyspace"
    return f"There is no {what} '{name}' {at}: check the name, or wait until it was made."
