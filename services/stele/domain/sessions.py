"""Sessions: work of a topology operation has no effect after the step that started it.

A session opens when a transition of the image has its id. It starts closing when no transition has
it, and is closed when its last guard is released. Work for an operation enters its session, and
checks the guard before each effect. A barrier follows the removal of a session's id. After it, no
work under the session runs anywhere, and none can start (docs/design.md, rules 41 and 42).

Source: ScyllaDB, topology-over-raft.md, "Topology guards".
"""

from collections import Counter

from stele.domain.topology.image import TopologyImage


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
