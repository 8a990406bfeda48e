"""The steps of a request, as the log's epochs say: a follower that looks now and then would miss some."""

from __future__ import annotations

from typing import Any

from stele.words.facts import EpochRow


class History:
    """Follows one request through the epochs, in their order."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._transition_id = ""
        self._state = ""
        self._status = ""
        self._goes_back = False

    def step(self, row: EpochRow) -> str:
        """Where the request is since this epoch; empty while none has spoken of it."""
        for fact in row.facts:
            self._take(fact)
        if self._transition_id:
            return f"{self._state}{' (being undone)' if self._goes_back else ''}"
        return self._status

    def _take(self, fact: dict[str, Any]) -> None:
        kind = fact.get("type")
        if kind == "RequestChanged" and fact["request"]["request_id"] == self._request_id:
            self._status = fact["request"]["status"]
        elif kind == "TransitionOpened" and self._is_ours(fact["transition"]):
            opened = fact["transition"]
            self._transition_id, self._state = opened["transition_id"], opened["state"]
            self._goes_back = False
        elif fact.get("transition_id") == self._transition_id:
            if kind == "TransitionMoved":
                self._state = fact["state"]
            elif kind == "TransitionMarked":
                self._goes_back = True
            elif kind == "TransitionFinished":
                self._transition_id = ""

    def _is_ours(self, transition: dict[str, Any]) -> bool:
        asked = [subject["request_id"] for subject in transition.get("subjects", ())]
        return self._request_id in (asked or [transition["transition_id"]])
