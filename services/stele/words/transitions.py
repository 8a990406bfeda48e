"""The requests that facts of transitions are about."""

from __future__ import annotations

from typing import NamedTuple

from stele.words.names import Fact


class Move(NamedTuple):
    """A change of a transition: its requests, and the state that they enter.

    ``state`` is empty if the transition ends, or is marked to go back.
    """

    request_ids: tuple[str, ...] = ()
    state: str = ""


class OpenTransitions:
    """The requests of the open transitions, from facts in log order, without parts."""

    def __init__(self) -> None:
        self._request_ids = dict[str, tuple[str, ...]]()

    def take(self, fact: Fact) -> Move:
        """Return the change that a fact makes. Other facts change no request."""
        match fact.get("type"):
            case "TransitionOpened":
                transition = fact["transition"]
                own = transition["transition_id"]
                # A transition without subjects has the id of its only request.
                ids = tuple(s["request_id"] for s in transition.get("subjects", ())) or (own,)
                self._request_ids[own] = ids
                return Move(ids, transition["state"])
            case "TransitionMoved":
                return Move(self._of(fact), fact["state"])
            case "TransitionMarked" | "TransitionFinished":
                return Move(self._of(fact))
        return Move()

    def _of(self, fact: Fact) -> tuple[str, ...]:
        return self._request_ids.get(fact["transition_id"], ())
