"""Sessions: no work of a topology operation has effects beyond the step that it was started in.

Life: a session opens when a transition of the image has its id, starts closing when none has it any more,
and is closed when its last guard is released. Whoever works for an operation enters its session, and checks
the guard before each effect. One rule carries everything (seed 000, topology guards): after a barrier that
follows the removal of a session's id, no work under it runs anywhere, and none can start.
"""

from collections import Counter

from stele.domain.topology.image import TopologyImage


class SessionClosedError(Exception):
    """Work asked to enter, or to go on under, a session that is not open."""


class SessionManager:
    """The sessions of one node."""

    def __init__(self) -> None:
        self._open: frozenset[str] = frozenset()
        self._guards: Counter[str] = Counter()

    def follow(self, topology: TopologyImage) -> None:
        """Take over which sessions are open; those that were and are not any more start closing."""
        self._open = topology.sessions()

    def is_open(self, session: str) -> bool:
        return session in self._open

    def enter(self, session: str) -> "SessionGuard":
        """A guard that keeps the session from being closed. Raises SessionClosedError."""
        if not self.is_open(session):
            raise SessionClosedError(f"session {session or '(none)'} is not open")
        self._guards[session] += 1
        return SessionGuard(self, session)

    def leave(self, session: str) -> None:
        self._guards[session] -= 1
        if self._guards[session] == 0:
            del self._guards[session]

    def in_use(self) -> tuple[str, ...]:
        """Sessions that still have guards, open or closing."""
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
        """Raises SessionClosedError once the session is closing: call before each effect."""
        if not self.is_open:
            raise SessionClosedError(f"session {self.session} is closing")

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._manager.leave(self.session)

    def __enter__(self) -> "SessionGuard":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
