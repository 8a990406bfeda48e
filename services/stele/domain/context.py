"""The input of every decision, its result, and the rejections that several domains share."""

import re
import uuid
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar, cast

from stele.domain.base import Rejection
from stele.domain.commands import Envelope
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.requests import state_time_ms

T = TypeVar("T")

Decision = tuple[AnyFact, ...] | Rejection

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMES: Final = uuid.UUID("7d1f4f0e-5b1c-4c63-9a3e-6f0a7c2b9e11")


class DecisionCache:
    """Results that repeated decisions on one command share.

    A command that needs parts is decided again, on the same state at a later epoch. Work that does
    not depend on the epoch is done once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], object] = {}

    def once(self, what: tuple[object, ...], work: Callable[[], T]) -> T:
        """Return the result of ``work``, which ``what`` identifies within this command."""
        if what not in self._known:
            self._known[what] = work()
        return cast("T", self._known[what])


class Context(NamedTuple):
    """The input of a decision.

    It has the image before the command, the command's envelope, and the writer's clock in ms. It
    also has the function that folds facts, the hash of an image's content
    (``snapshot.content_hash``), and earlier results. The clock is for people, and for the times
    from which CDC generations hold.
    """

    image: Image
    envelope: Envelope
    at_ms: int
    fold: Callable[[Image, Iterable[AnyFact]], Image]
    hash_of: Callable[[Image], str]
    cache: DecisionCache

    @property
    def epoch(self) -> int:
        """The epoch that applies this command if it is not rejected."""
        return self.image.epoch + 1

    @property
    def log_ms(self) -> int:
        """The time of that epoch, in milliseconds since 1970.

        It is its state id's time and never goes back.
        """
        return max(self.at_ms, state_time_ms(self.image.state_id))

    def unique(self, what: str) -> str:
        """Return an id that differs for every epoch and every ``what`` of an epoch.

        A recovered log counts the lost epochs again, and nodes may still have data of these epochs.
        """
        image = self.image
        # A log that was never recovered keeps the form of its earlier ids.
        recovered = f"{image.log_id.hex()}/" if image.founding.incarnations else ""
        return str(uuid.uuid5(_NAMES, f"{image.cluster_id}/{recovered}{self.epoch}/{what}"))


def bad_name(what: str, name: str, *, dots: bool = True) -> Rejection | None:
    """Return None for a valid name of a node, dc, rack, feature or setting, or the rejection.

    Without ``dots`` it is the name of a keyspace or table, because a dot separates these two.
    """
    if NAME.fullmatch(name) and (dots or "." not in name):
        return None
    others = "'.', '_' or '-'" if dots else "'_' or '-'"
    return Rejection(
        "bad_name",
        f"'{name[:80]}' is no name for a {what}.",
        f"Use 1 to 64 letters, digits, {others}, the first a letter or digit.",
    )


def unknown_request(request_id: str) -> Rejection:
    return Rejection(
        "unknown_request",
        f"There is no topology request '{request_id}'.",
        "`stele requests` lists them.",
    )


def unknown_node(node_id: str) -> Rejection:
    return Rejection(
        "unknown_node", f"There is no node '{node_id}'.", "`stele nodes` lists the nodes."
    )


def unknown_keyspace(name: str) -> Rejection:
    return Rejection(
        "unknown_keyspace",
        f"There is no keyspace '{name[:80]}'.",
        "`stele keyspace list` shows them.",
    )


def unknown_table(name: str) -> Rejection:
    return Rejection(
        "unknown_table", f"There is no table '{name[:130]}'.", "`stele table list` shows them."
    )


def unknown_tablet(table: str, count: int, tablet: int) -> Rejection:
    return Rejection(
        "unknown_tablet",
        f"Table {table} has tablets 0 to {count - 1}, and no {tablet}.",
        f"`stele tablet list {table}` shows them.",
    )


def nothing_left_of(node_id: str) -> Rejection:
    """Return the rejection of a request about a node that has left."""
    return Rejection(
        "node_left",
        f"Node '{node_id}' has left the cluster.",
        f"There is nothing left to do for it; `stele requests --node {node_id}` shows how it left.",
    )


def node_has_left(node_id: str) -> Rejection:
    return Rejection(
        "node_left",
        f"Node '{node_id}' has left the cluster; its id cannot be used again.",
        "Clear the node's data directory and start it with a new id.",
    )
