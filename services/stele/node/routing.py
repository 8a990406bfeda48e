"""Which replicas a key has: now, and in the versions before that are still served."""

from stele.domain.image import Image
from stele.domain.ring.ranges import Placement
from stele.log.follower import LogFollower


class Routing:
    """The newest image of each topology version from the fence to the current one (at most two, I3)."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._by_version: dict[int, Image] = {}
        follower.listen(lambda image, _: self._follow(image))
        self._follow(follower.image)

    @property
    def image(self) -> Image:
        return self._follower.image

    @property
    def version(self) -> int:
        return self.image.topology.topology.version

    def placement(self, keyspace: str, version: int) -> Placement | None:
        """The placement by which requests of ``version`` are routed; None when it is not known.

        After a restart an older version's may be missing: then the current one counts.
        """
        image = self._by_version.get(version, self.image)
        found = image.placement_of(keyspace)
        return self.image.placement_of(keyspace) if found is None else found

    def _follow(self, image: Image) -> None:
        topology = image.topology.topology
        self._by_version[topology.version] = image
        for version in [v for v in self._by_version if v < topology.fence_version]:
            del self._by_version[version]
