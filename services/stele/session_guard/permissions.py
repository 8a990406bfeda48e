"""What the cluster permits at one epoch, and why work that carries a version or a session is refused.

Pure, and imports neither the log nor Kafka: ``check.py``, which runs in other people's processes, judges
by the same two functions as the guard itself.
"""

from collections.abc import Collection

import msgspec


class Permissions(msgspec.Struct, frozen=True):
    """``log_id`` names the incarnation of the log that ``epoch`` counts; a later one has a greater id."""

    log_id: str
    epoch: int
    version: int
    fence_version: int
    sessions: tuple[str, ...]

    @property
    def place(self) -> tuple[str, int]:
        """Where in all logs of the cluster this is; what is shown to others never goes back behind it."""
        return self.log_id, self.epoch


def other_log(log_id: str, now_log_id: str, epoch: int) -> str:
    """Why work that began by log ``log_id`` is refused; empty when it may go on, or does not say.

    It may be of an epoch that was lost when that log was recovered: what fenced it out is not known any more.
    """
    if log_id in ("", now_log_id):
        return ""
    return (
        f"This work began by log {log_id[:64]}, which was recovered since as {now_log_id} (epoch {epoch}): "
        "read the newest topology and start again."
    )


def stale_version(version: int, fence_version: int, epoch: int) -> str:
    """Why work of ``version`` is refused; empty when it may go on."""
    if version >= fence_version:
        return ""
    return (
        f"Version {version} is older than the fence {fence_version} (epoch {epoch}): "
        "read the newest topology and start again."
    )


def session_not_open(session: str, open_sessions: Collection[str], epoch: int) -> str:
    """Why work under ``session`` is refused; empty when it may go on."""
    if session and session in open_sessions:
        return ""
    return (
        f"Session {session or '(none)'} is not open at epoch {epoch}: "
        "give up the work that carries it."
    )
