"""What can go wrong between a key and its replicas: a closed set, each with a sentence that says what to do."""

from collections.abc import Mapping


class RoutingError(Exception):
    """All that the router raises, but for ``StaleRoute``, which its user raises."""


class NotReady(RoutingError):
    """Nothing is known of the cluster yet; ``wait_ready`` waits."""


class UnknownName(RoutingError):
    """No keyspace or table of this name serves requests, as far as the router has read."""


class RouterStopped(RoutingError):
    """The router is closed, or cannot follow the log; the text says why."""


class StaleRoute(Exception):
    """Raise it when a replica refuses a request's version: the router reads on, and routes anew.

    ``epoch`` is one that the replica asks the sender to read first; 0: it named none.
    """

    def __init__(self, epoch: int = 0, text: str = "") -> None:
        super().__init__(text or f"a replica has another version; read epoch {epoch}")
        self.epoch = epoch


class StaleTooLong(RoutingError):
    """Replicas went on refusing until the time was up: nothing newer came to route by."""


class Unavailable(RoutingError):
    """Too few replicas did it. Of a write: it may be at some, and may take effect yet.

    ``refused`` says why, by node; ``answered`` are those who did it.
    """

    def __init__(self, text: str, answered: frozenset[str], refused: Mapping[str, str]) -> None:
        super().__init__(text)
        self.answered = answered
        self.refused = refused
