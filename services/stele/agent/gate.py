"""When a node may serve and acknowledge: not before the log has shown that it is who it was (I6, I13).

Closed at the start. It opens once the log is the one that the directory is bound to, was read at least to
the newest epoch that this node has acknowledged a version or a fence at (the follower's floor, which compares
that epoch's state id too), and the node's row carries this directory's host id. What contradicts that ends
the process: nothing the node could serve would be right.
"""

import asyncio
import time
from typing import Final

import msgspec

from stele.agent.identity import AcceptedLoss, Acknowledged, DataDirectory, Identity
from stele.agent.lost_epochs import binding
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.membership.hosts import may_take
from stele.domain.names import JOINING
from stele.domain.overrides.awaited import awaits_state
from stele.log.errors import OtherHistoryError
from stele.log.follower import Floor, LogFollower
from stele.log.lasting import Lasting
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

PATIENCE_S: Final = 60.0
"""A broker that was cut off may show an old end of the log for some time; a lost end never comes back."""
LOOK_S: Final = 0.05
CATCHING_UP: Final = "catching_up"

log = get_logger(__name__)


class Closed(msgspec.Struct, frozen=True):
    """Why nothing is served: a code and a sentence."""

    code: str
    message: str


class NotThisReplica(ConfigurationError):
    """The log knows another replica, or another history, than this data directory."""


class Gate:
    """Looks at what ``follower`` reads; the follower must have the directory's ``floor_of``.

    ``accept`` is the id of a log whose lost epochs an operator accepts (``lost_epochs``), ``claims`` the host
    id of a free place that the directory may take.
    """

    def __init__(
        self, directory: DataDirectory, follower: LogFollower, accept: str = "", claims: str = ""
    ) -> None:
        self.failure: NotThisReplica | None = None
        self.looks_back = ""
        """What is waited for while it is read what the node told last; empty: that is known."""
        self._lacks = ""
        """Why what it has acknowledged may not be read for long."""
        self._directory = directory
        self._accept = accept
        self._claims = claims
        self._loss: AcceptedLoss | None = None
        self._older = ""
        """Why the log must not be followed if it ends as the one that it is now."""
        self._follower = follower
        self._acknowledged = directory.identity.acknowledged
        self._reached = False
        self._open = False
        follower.listen(self._on_epoch)
        self._look(follower.image)

    @property
    def is_open(self) -> bool:
        return self._open and self.failure is None and self._follower.failure is None

    def closed(self) -> Closed | None:
        """None when the node may serve and acknowledge."""
        epoch = self._follower.image.epoch
        if self.is_open:
            return None
        if self.failure is not None:
            return Closed("not_admitted", str(self.failure))
        if self._follower.failure is not None:
            return Closed(
                "unavailable", f"The node does not follow the log; it is at epoch {epoch}."
            )
        if not self._reached:
            if self._lacks:
                return Closed(CATCHING_UP, self._lacks)
            least = self._acknowledged.epoch
            least_text = f", not yet at {least}" if epoch < least else ""
            return Closed(
                CATCHING_UP, f"The node is reading the log: at epoch {epoch}{least_text}."
            )
        return self._why_not_admitted()

    def _why_not_admitted(self) -> Closed:
        image, identity = self._follower.image, self._directory.identity
        if not image.cluster:
            return Closed(
                "not_admitted",
                f"There is no cluster '{identity.cluster}' yet: run `stele found`, or correct STELE_CLUSTER.",
            )
        if self.looks_back:
            return Closed(CATCHING_UP, self.looks_back)
        row = image.node(identity.node_id)
        if row is not None and row.host_id == identity.host_id:
            return Closed(CATCHING_UP, "The node has found its row in the log, and notes that.")
        return Closed("not_admitted", "The cluster has not yet admitted this node.")

    async def reach(self, caught_up: asyncio.Event, stop: Stop) -> None:
        """Returns once the log was read as far as this node may have acknowledged it. Where the log ends before
        that it waits, and says so: a log that lost its end is recovered by what is left, and this node tells
        what it has promised.

        Raises NotThisReplica when the log is another one, or has another epoch there.
        """
        short = Lasting()
        while not stop.requested:
            self._raise_failure()
            if caught_up.is_set() and not self._older:
                self._reached = True
                return
            if not self._is_short():
                self._lacks = ""
                short.over()
            elif self._follower.is_at_end and short.seen(time.monotonic()) > PATIENCE_S:
                self._miss(f"the log ends at epoch {self._follower.image.epoch}", self._older)
            await stop.sleep(LOOK_S)

    def _is_short(self) -> bool:
        """What this node has acknowledged was not read. At the end of the log it is not there."""
        follower = self._follower
        is_short = bool(self._older) or follower.image.epoch < self._acknowledged.epoch
        return is_short and follower.failure is None

    def _raise_failure(self) -> None:
        """Raises NotThisReplica."""
        other = self._follower.failure
        own = (0, self._acknowledged.epoch)  # the replicas' floor says nothing of this node
        if self.failure is None and isinstance(other, OtherHistoryError) and other.epoch in own:
            self.failure = NotThisReplica(
                self._missed(f"the log has another epoch there ({other})")
            )
        if self.failure is not None:
            raise self.failure

    async def recognise(self, stop: Stop) -> None:
        """Wait for the node's row, check that it is this directory's, note who admitted it, and open.

        Raises NotThisReplica. Call it after ``reach``.
        """
        identity = self._directory.identity
        while not stop.requested:
            image = self._follower.image
            row = image.node(identity.node_id)
            if row is not None:
                self.check_host(image)
            if row is not None and row.host_id == identity.host_id:
                if self._open:
                    return  # all is noted, and since then the agent notes what it acknowledges
                losses = identity.accepted_losses
                if self._loss is not None:
                    log.warning("lost epochs are accepted", loss=msgspec.to_builtins(self._loss))
                    losses = (*losses, self._loss)
                keeps = identity.acknowledged.epoch and self._loss is None
                await asyncio.to_thread(
                    self._directory.save,
                    cluster_id=image.cluster_id,
                    log_id=image.log_id.hex(),
                    admitted_by=identity.admitted_by or row.request_id,
                    acknowledged=identity.acknowledged if keeps else noted(image),
                    accepted_losses=losses,
                )
                self._open = True
                return
            await stop.sleep(LOOK_S)

    def check_host(self, image: Image) -> None:
        """Raises NotThisReplica when the node's row is of another data directory, or is gone."""
        identity = self._directory.identity
        row = image.node(identity.node_id)
        if row is not None and not may_take(row.host_id, identity.host_id, self._claims):
            what_to_do = (
                f"cancel the old one's request (`stele cancel {row.request_id}`)"
                if row.state in JOINING
                else "remove or replace the old one"
            )
            raise NotThisReplica(
                f"host_id_mismatch: node '{identity.node_id}' is host {row.host_id or '(none)'} in the log,"
                f" {self._directory.folder} is host {identity.host_id}: this is not the replica that the"
                f" cluster knows: put its own data directory back, or give the node a new name and {what_to_do}"
            )
        if row is None and identity.admitted_by and not awaits_state(image):
            raise NotThisReplica(
                f"the log does not know node '{identity.node_id}', which request {identity.admitted_by}"
                f" made a member: {_why_unknown(image)}"
            )

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._look(image)

    def _look(self, image: Image) -> None:
        if self._open or self.failure is not None or not image.cluster or awaits_state(image):
            return
        found = binding(self._directory.identity, image, self._accept)
        self._loss = found.loss
        self._older = found.refused if found.is_older else ""
        if found.refused and not found.is_older:
            self.failure = NotThisReplica(f"{self._directory.folder}: {found.refused}")

    def _miss(self, why: str, older: str) -> None:
        lacks = f"{self._directory.folder}: {older} ({why})." if older else f"{self._missed(why)}."
        if not self._lacks:
            log.error("the log does not have what this node has acknowledged", why=lacks)
        self._lacks = lacks

    def _missed(self, why: str) -> str:
        told = self._acknowledged
        return (
            f"This node acknowledged fence {told.fence_version} at epoch {told.epoch} (state"
            f" {told.state_id}), but {why}: the log was truncated, restored or made anew, or the broker is"
            " cut off from it. Bring the log back, or recover it and accept the loss"
        )


def noted(image: Image) -> Acknowledged:
    """What is put on the disk before an ack tells the image's version and fence."""
    topology = image.topology
    return Acknowledged(image.epoch, image.state_id.hex(), topology.version, topology.fence_version)


def _why_unknown(image: Image) -> str:
    if image.founding.incarnations:
        return (
            "it was admitted in an epoch that was lost, or the log lost its end; give it an empty folder, so"
            " that it joins anew, or bring the log back"
        )
    return "the log was made anew or lost its end; bring it back"


def floor_of(identity: Identity, accept: str = "") -> Floor | None:
    """Where a follower of the node's log is up to date at the earliest; None before the first ack, and when the
    loss of it is accepted.
    """
    acknowledged = identity.acknowledged
    if not acknowledged.epoch or (accept and accept == identity.log_id):
        return None
    return Floor(acknowledged.epoch, bytes.fromhex(acknowledged.state_id), log_id=identity.log_id)
