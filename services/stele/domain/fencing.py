"""Versions in use and the fence, per range (seed 000; design, I3 and I6).

Each request that a node coordinates holds the topology version by which it chose its replicas, from before the
choice until its last answer.

A row of a placement keeps the version that gave it its replicas, and the one before. A request whose row
did not change since is promoted to the newest version, so a steady stream of rounds elsewhere neither waits
for it nor kills it. A replica refuses a request of version v exactly when v is older than the newest change
of the row that is fenced: before it does anything, and again before it answers, since a request that began
early and ended late has failed.

Two versions are needed. While a row's newest change is not fenced yet, requests of the version before it are
served; those that are older than the change before that one are not, or a coordinator that slept through both
would write to replicas that nobody reads any more. There is no third: a row changes again only once its change
before is fenced.
"""

from collections.abc import Callable

import msgspec

from stele.domain.image import Image


class StaleVersion(msgspec.Struct, frozen=True):
    """The caller routes by a version that is fenced out; it must read the log and try again."""

    version: int
    row_version: int
    fence_version: int

    def __str__(self) -> str:
        return (
            f"version {self.version} is older than version {self.row_version} of the range, "
            f"and the fence is at {self.fence_version}"
        )


def newest_fenced(version: int, version_before: int, fence_version: int) -> int:
    """The newest of a row's two changes that is fenced; requests below it are stale."""
    return version if version <= fence_version else version_before


def check_token(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
    """None when a request of ``version`` for a token of a keyspace's data may go on by what this image says.

    A keyspace that is gone was dropped, and fenced, after every version that routed by it. Data that was
    truncated away is refused at once, its version fenced or not: so there is one moment for each range from
    which on no quorum meets it any more.
    """
    fence_version = image.topology.fence_version
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return StaleVersion(version, fence_version, fence_version)
    if version >= fence_version:  # nearly always; what is asked below is never above the fence
        return None
    row = image.ring.placements[keyspace.placement].row_for(token)
    oldest = max(
        newest_fenced(row.version, row.version_before, fence_version),
        newest_fenced(keyspace.placed_version, 0, fence_version),
        newest_fenced(keyspace.dropped_version, 0, fence_version),
    )
    return None if version >= oldest else StaleVersion(version, oldest, fence_version)


def check_client(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
    """The same for a request of a client, which is no member and acknowledges nothing.

    A barrier that every member has answered needs no fence before the work begins, since nobody is left who
    routes by an older version. A client may be: so it is held to the newest change of the range that this
    image says, fenced or not. Whoever answered the barrier has applied that, and refuses from then on.
    """
    keyspace = image.schema.of_data(data_id)
    if keyspace is not None:
        row = image.ring.placements[keyspace.placement].row_for(token)
        newest = max(row.version, keyspace.placed_version, keyspace.dropped_version)
        if version < newest:
            return StaleVersion(version, newest, image.topology.fence_version)
    return check_token(image, data_id, token, version)


def takes_part(image: Image, coordinating: str) -> bool:
    """Whether a replica may serve the node that coordinates a request.

    Barriers that everybody has answered were answered by those who take part. A node that has left, or whose
    join was undone, and does not know it yet, may still route by a row of long ago, whose change nobody has
    fenced out: so it is refused by what the replica knows of it. So is one that is excluded, should it live.
    """
    node = image.node(coordinating)
    return node is not None and node.takes_part()


class Hold:
    """A request's claim on the version that it is routed by. ``version`` rises while its row stays the same."""

    __slots__ = ("data_id", "token", "version")

    def __init__(self, version: int, data_id: str, token: int) -> None:
        self.version = version
        self.data_id = data_id
        self.token = token


class VersionTracker:
    """The versions that requests hold. ``on_drained`` is called when none below the current is held any
    more.
    """

    def __init__(self, on_drained: Callable[[], None] = lambda: None) -> None:
        self._holds: dict[int, set[Hold]] = {}
        self._current = 0
        self._image: Image | None = None
        self._on_drained = on_drained

    def hold(self, version: int, data_id: str, token: int) -> Hold:
        """Before the choice of replicas is acted on. Release it after the last answer."""
        hold = Hold(version, data_id, token)
        if version < self._current and self._image is not None and _unchanged(self._image, hold):
            hold.version = self._current
        self._holds.setdefault(hold.version, set()).add(hold)
        return hold

    def release(self, hold: Hold) -> None:
        holders = self._holds[hold.version]
        holders.remove(hold)
        if not holders:
            del self._holds[hold.version]
            if hold.version < self._current:
                self._on_drained()

    def follow(self, image: Image) -> None:
        """Promote the requests whose rows are as they were to the image's version."""
        self._image = image
        current = self._current = image.topology.version
        for version in [held for held in self._holds if held < current]:
            for hold in [*self._holds[version]]:
                if _unchanged(image, hold):
                    self._holds[version].remove(hold)
                    hold.version = current
                    self._holds.setdefault(current, set()).add(hold)
            if not self._holds[version]:
                del self._holds[version]
                self._on_drained()

    def oldest_in_use(self, current: int) -> int:
        """The lowest version that is held, or ``current`` when there is none older."""
        return min(self._holds, default=current) if self._holds else current

    def in_use(self) -> dict[int, int]:
        """Version -> number of requests that hold it."""
        return {version: len(holds) for version, holds in sorted(self._holds.items())}


def _unchanged(image: Image, hold: Hold) -> bool:
    keyspace = image.schema.of_data(hold.data_id)
    if keyspace is None or hold.version < max(keyspace.dropped_version, keyspace.placed_version):
        return False
    row = image.ring.placements[keyspace.placement].row_for(hold.token)
    return row.version <= hold.version
