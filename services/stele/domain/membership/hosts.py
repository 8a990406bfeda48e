"""Host ids of places that nobody has taken yet: a cluster that begins with a dump knows its nodes before it has
met them (docs/decisions/030)."""

from typing import Final

_UNCLAIMED: Final = "unclaimed:"


def unclaimed(host_id: str) -> str:
    """The host id of a place that waits for the data directory of this host."""
    return host_id if is_unclaimed(host_id) else f"{_UNCLAIMED}{host_id}"


def is_unclaimed(host_id: str) -> bool:
    return host_id.startswith(_UNCLAIMED)


def may_take(place: str, host_id: str, claims: str = "") -> bool:
    """Whether the directory of ``host_id`` has this place, or may take it: as the one that the place waits for,
    or as another one that an operator lets take it, by the id of that.
    """
    if not is_unclaimed(place):
        return place == host_id
    waits_for = place.removeprefix(_UNCLAIMED)
    return bool(waits_for) and waits_for in (host_id, claims)
