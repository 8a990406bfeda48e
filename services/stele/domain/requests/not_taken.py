"""Why a command is not taken: nothing is decided, and nothing is remembered under its id."""

from typing import Final

from stele.domain.commands import Rejection
from stele.domain.requests.ids import is_id, state_time_ms, time_ms

MAX_AHEAD_MS: Final = 10 * 60 * 1000
"""How far an id's time may lie ahead of the log's: clocks differ by less, and one id from far ahead would
one day raise the horizon above everybody's ids."""
HORIZON_MS: Final = "horizon_ms"

BUSY: Final = "busy"
BAD_ID: Final = "bad_request_id"
FROM_THE_FUTURE: Final = "request_id_from_the_future"
REUSED: Final = "request_id_reused"
EXPIRED: Final = "request_id_expired"
NOT_FOUNDED: Final = "not_founded"
OLDER_CLUSTER: Final = "older_cluster"
OTHER_LOG: Final = "other_log"
FROZEN: Final = "frozen"
SINGLE_USER: Final = "single_user"

OF_THE_ID: Final = frozenset({BAD_ID, FROM_THE_FUTURE, REUSED, EXPIRED})
"""Nothing was decided, which says nothing of the command: under another id it can be."""
RESTRICTED: Final = frozenset({FROZEN, SINGLE_USER})
"""The log takes the command once it is thawed."""
LATER: Final = RESTRICTED | {BUSY}
"""The same command may be taken later, under the same id."""


def check_id(
    request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
) -> Rejection | None:
    """What is wrong with an id; the log's time is that of its newest state id, or the writer's clock.

    The clock counts because the next state id will be of that time: a log that nothing was written to for an
    hour must take the ids of now. A state id far ahead of it is of a writer whose clock was wrong once: ids of
    that time would raise the horizon above everybody's. Where it was raised all the same, ids behind it are the
    only ones that can be taken.
    """
    if not is_id(request_id):
        return Rejection(
            BAD_ID,
            f"'{request_id[:80]}' is no request id: it must be a UUID of version 7, in lower case.",
            "`stele id` makes one; send the same one again when you retry.",
        )
    asked_ms = time_ms(request_id)
    if asked_ms <= now_ms:
        return None
    newest_ms = max(now_ms, min(state_time_ms(state_id), now_ms + MAX_AHEAD_MS), horizon_ms)
    ahead_ms = asked_ms - newest_ms
    if ahead_ms > MAX_AHEAD_MS:
        return Rejection(
            FROM_THE_FUTURE,
            f"The time inside {request_id} is {ahead_ms // 1000} s ahead of the log's.",
            "Set the clock of the machine that made the id, and make a new one.",
            {"ahead_ms": str(ahead_ms)},
        )
    return None


def reused(epoch: int) -> Rejection:
    return Rejection(
        REUSED,
        f"This request id stands for another command, which was decided at epoch {epoch}.",
        "Send each command under an id of its own; `stele id` makes one.",
        {"epoch": str(epoch)},
    )


def expired(horizon_ms: int) -> Rejection:
    return Rejection(
        EXPIRED,
        "The request id is older than what the log remembers: if it was not decided, it never will be.",
        "Look whether the change is there; if not, send it under a new id."
        f" `stele id --after {horizon_ms}` makes one that is new enough, whatever the clock says.",
        {HORIZON_MS: str(horizon_ms)},
    )


def horizon_of(rejection: Rejection | None) -> int:
    """The time that an id must be newer than, as the newest refusal says; -1 where it says nothing of it."""
    return -1 if rejection is None else int(rejection.details.get(HORIZON_MS, -1))


def moved_on(told_ms: int, before_ms: int) -> bool:
    """Whether a refusal tells a later horizon than the one before. An id behind it is sent at once: a log that
    remembers little has moved it further when a process has paused.
    """
    return told_ms > before_ms


def deleted(epoch: int) -> Rejection:
    return Rejection(
        EXPIRED,
        f"The request may have been decided at epoch {epoch}, which was deleted from the archive since"
        " (archive_keep_days, archive_keep_epochs): what became of it is not known any more.",
        "Look whether the change is there; if not, send it under a new id.",
        {"epoch": str(epoch)},
    )


def unreadable(epoch: int) -> Rejection:
    return Rejection(
        BUSY,
        f"The request may have been decided at epoch {epoch}, which cannot be read now.",
        "Try again in a moment with the same request id.",
        {"epoch": str(epoch)},
    )
