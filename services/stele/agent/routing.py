"""Which replicas a key has: now, and in the versions before that are still served."""

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.ring.placement import Placement
from stele.log.follower import LogFollower


class Routing:
    """The newest image of each topology version from the fence to the current one.

    Requests of older versions go on where their row did not change; by the oldest image that is kept their
    row is the same, or they are refused (``domain.fencing``).
    """

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._by_version: dict[int, Image] = {}
        follower.listen(self._on_epoch)
        self._follow(follower.image)

    def placement(self, data_id: str, version: int) -> Placement | None:
        """The placement by which requests of ``version`` are routed; None when the keyspace is not known.

        After a restart an older version's may be missing: then the current one counts.
        """
        current = self._follower.image
        oldest = min(self._by_version)
        image = self._by_version.get(max(version, oldest), current)
        known = _placement(image, data_id)
        return _placement(current, data_id) if known is None else known

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._follow(image)

    def _follow(self, image: Image) -> None:
        topology = image.topology
        self._by_version[topology.version] = image
        for version in [v for v in self._by_version if v < topology.fence_version]:
            del self._by_version[version]


def _placement(image: Image, data_id: str) -> Placement | None:
    keyspace = image.schema.of_data(data_id)
    return None if keyspace is None else image.ring.placements.get(keyspace.placement)
