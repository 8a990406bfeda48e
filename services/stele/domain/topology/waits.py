"""Kinds of waits of the coordinator: what a request, a transition or a round waits for."""

from enum import StrEnum
from typing import Final

SILENCE: Final = "STELE_SILENCE_S"
"""The setting that ends waits without progress."""


class WaitKind(StrEnum):
    """The kind of a wait."""

    LOG = "log"
    """A command of the coordinator whose effect the log does not show yet."""
    RESTRICTED = "restricted"
    """The log takes no commands of the coordinator: it is frozen, or reserved for one actor."""
    STANDBY = "standby"
    """This coordinator does not act."""
    COMPANY = "company"
    """Other requests of the same kind, which may open together with it."""
    MEMBERS = "members"
    """Nodes without which it does not start."""
    SILENCE = "silence"
    """The silence of nodes that are declared dead; they must not answer."""
    LIVES = "lives"
    """Nodes that are declared dead, and still answer."""
    PREPARED = "prepared"
    """Nodes that must prepare their storage for it; their other work continues."""
    ROOM = "room"
    """Ranges that another request is moving."""
    APPLIED = "applied"
    """Nodes that must have applied a version."""
    FENCED = "fenced"
    """Nodes that must know that the older versions are fenced."""
    RECEIVERS = "receivers"
    """Nodes to which reads are about to move."""
    STREAM = "stream"
    """Nodes that must receive data."""
    WORK = "work"
    """Nodes each of which must do a piece of work and report it."""
    REST = "rest"
    """Other work that ends soon without help."""
    CLEANUP = "cleanup"
    """Deletion of data, which blocks no request."""
    ARCHIVE = "archive"
    """Catch-up replicas that are down or missing, which block nothing else."""


ASIDE: Final = (WaitKind.CLEANUP, WaitKind.ARCHIVE)
"""Waits that block no request but their own."""
