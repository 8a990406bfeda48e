"""Versions in use and the fence, per range (docs/design.md, rules 31 to 34, I3 and I6).

A node that coordinates a request holds the topology version of its choice of replicas, from
before the choice until the last answer.

A row of a placement keeps the version that gave it its replicas, and the version before. If the row
of a request did not change, the request is promoted to the newest version. Rounds elsewhere
therefore neither wait for it nor reject it. A replica refuses a request of version v exactly when v
is older than the newest change of the row that is fenced. It checks before the effect and again
before the answer, because the fence may have moved in between.

Two versions are necessary. While the newest change of a row is not fenced, requests of the version
before it are served. Requests from before the previous change are refused: a coordinator that
missed both changes would write to replicas that are read no more. A third version is not necessary,
because a row changes again only when its previous change is fenced.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from stele.domain.image import Image
from stele.domain.model.transitions import TopologyImage


class StaleVersion(msgspec.Struct, frozen=True):
    """The caller uses a version that is fenced out. It must read the log and try again."""

    version: int
    row_version: int
    fence_version: int

    def __str__(self) -> str:
        return (
            f"version {self.version} is older than version {self.row_version} of the range, "
            f"and the fence is at {self.fence_version}"
        )


def newest_fenced(version: int, version_before: int, fence_version: int) -> int:
    """Return the newest of a row's two changes that is fenced. Requests below it are stale."""
    return version if version <= fence_version else version_before


def check_token(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
    """Return None when the image permits a request of ``version`` for a token of some data.

    A keyspace that does not exist was dropped, and fenced, after every version that used it.
    Truncated data is refused at once, whether or not its version is fenced. Thus each range has one
    moment after which no quorum accepts requests for that data.
    """
    fence_version = image.topology.fence_version
    keyspace = image.schema.of_data(data_id)
    if keyspace is None:
        return StaleVersion(version, fence_version, fence_version)
    if version >= fence_version:  # nearly always true; no limit below is above the fence
        return None
    row = image.ring.placements[keyspace.placement].row_for(token)
    oldest = max(
        newest_fenced(row.version, row.version_before, fence_version),
        newest_fenced(keyspace.placed_version, 0, fence_version),
        newest_fenced(keyspace.dropped_version, 0, fence_version),
    )
    return None if version >= oldest else StaleVersion(version, oldest, fence_version)


def check_client(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
    """Return None when a request of a client is permitted.

    A client is no member and acknowledges nothing.

    A barrier that every member has answered needs no fence before the work begins, because no
    member uses an older version. A client may still use one. It is therefore held to the newest
    change of the range in this image, fenced or not. All nodes that answered the barrier have
    applied that change and refuse older requests of clients.
    """
    keyspace = image.schema.of_data(data_id)
    if keyspace is not None:
        row = image.ring.placements[keyspace.placement].row_for(token)
        newest = max(row.version, keyspace.placed_version, keyspace.dropped_version)
        if version < newest:
            return StaleVersion(version, newest, image.topology.fence_version)
    return check_token(image, data_id, token, version)


def takes_part(image: Image, coordinating: str) -> bool:
    """Return True if a replica may serve the node that coordinates a request.

    Complete barriers contain only answers of current members. A node that has left, or whose join
    was undone, may not have read that yet. It may then use an old row whose change is not fenced. A
    replica refuses such a node by its own image. It also refuses an excluded node that is still
    running.
    """
    node = image.node(coordinating)
    return node is not None and node.takes_part()


class Hold:
    """A request's claim on the version that it uses.

    ``version`` rises while its row stays the same.
    """

    __slots__ = ("data_id", "token", "version")

    def __init__(self, version: int, data_id: str, token: int) -> None:
        self.version = version
        self.data_id = data_id
        self.token = token


class VersionTracker:
    """The versions that requests hold.

    ``on_drained`` is called when no version below the current one is held any more.
    """

    def __init__(self, on_drained: Callable[[], None] = lambda: None) -> None:
        self._holds: dict[int, set[Hold]] = {}
        self._current = 0
        self._image: Image | None = None
        self._on_drained = on_drained

    def hold(self, version: int, data_id: str, token: int) -> Hold:
        """Return a hold.

        Call it before acting on the choice of replicas; release it after the last answer.
        """
        # The image may have advanced since the request chose its replicas. An unchanged row is
        # promoted at once, so that a barrier does not wait for it.
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
            # A barrier waits only for holds below the current version.
            if hold.version < self._current:
                self._on_drained()

    def follow(self, image: Image) -> None:
        """Promote the requests whose rows are unchanged to the image's version."""
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
        """Return the lowest version that is held, or ``current`` when there is none older."""
        return min(self._holds, default=current) if self._holds else current

    def in_use(self) -> dict[int, int]:
        """Return version -> number of requests that hold it."""
        return {version: len(holds) for version, holds in sorted(self._holds.items())}


def _unchanged(image: Image, hold: Hold) -> bool:
    keyspace = image.schema.of_data(hold.data_id)
    # A keyspace that was dropped, or that has another placement since, counts as changed.
    if keyspace is None or hold.version < max(keyspace.dropped_version, keyspace.placed_version):
        return False
    row = image.ring.placements[keyspace.placement].row_for(hold.token)
    return row.version <= hold.version


# Sessions: work of a topology operation has no effect after the step that started it.
#
# A session opens when a transition of the image has its id. It starts closing when no transition has
# it, and is closed when its last guard is released. Work for an operation enters its session, and
# checks the guard before each effect. A barrier follows the removal of a session's id. After it, no
# work under the session runs anywhere, and none can start (docs/design.md, rules 41 and 42).
#
# Source: ScyllaDB, topology-over-raft.md, "Topology guards".


class SessionClosedError(Exception):
    """Work tried to enter or continue under a session that is not open."""


class SessionManager:
    """The sessions of one node."""

    def __init__(self) -> None:
        self._open: frozenset[str] = frozenset()
        self._guards: Counter[str] = Counter()

    def follow(self, topology: TopologyImage) -> None:
        """Take over the open sessions of the image.

        Sessions that are no longer open start closing.
        """
        self._open = topology.sessions()

    def is_open(self, session: str) -> bool:
        return session in self._open

    def enter(self, session: str) -> "SessionGuard":
        """Return a guard that keeps the session from closing. Raises SessionClosedError."""
        if not self.is_open(session):
            raise SessionClosedError(f"session {session or '(none)'} is not open")
        self._guards[session] += 1
        return SessionGuard(self, session)

    def leave(self, session: str) -> None:
        self._guards[session] -= 1
        # Only sessions in use have an entry, because ``in_use`` lists the entries.
        if self._guards[session] == 0:
            del self._guards[session]

    def in_use(self) -> tuple[str, ...]:
        """Return the sessions that still have guards, open or closing."""
        return tuple(sorted(self._guards))


class SessionGuard:
    """Permission to have effects under a session, for as long as ``check`` passes."""

    def __init__(self, manager: SessionManager, session: str) -> None:
        self._manager = manager
        self.session = session
        self._released = False

    @property
    def is_open(self) -> bool:
        return not self._released and self._manager.is_open(self.session)

    def check(self) -> None:
        """Raise SessionClosedError once the session is closing. Call it before each effect."""
        if not self.is_open:
            raise SessionClosedError(f"session {self.session} is closing")

    def release(self) -> None:
        # Releasing twice must not release the guard of other work under the same session.
        if not self._released:
            self._released = True
            self._manager.leave(self.session)

    def __enter__(self) -> "SessionGuard":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
