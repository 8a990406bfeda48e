"""The gate: a node serves and acknowledges only after the log has confirmed its identity (I6, I13).

The gate is closed at the start. It opens under three conditions (docs/design.md, rule 50):

- The log is the one that the directory is bound to.
- The log was read at least to the newest epoch at which this node has acknowledged a version or a
  fence. The follower's floor also compares that epoch's state id.
- The node's row carries the host id of this directory.

A contradiction ends the process, because the node could serve nothing correct.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final

import msgspec

from stele.agent.identity import AcceptedLoss, Acknowledged, DataDirectory, Identity
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.model.cluster import EpochStatus, epoch_status, incarnation
from stele.domain.overrides import awaits_state
from stele.domain.rules.membership import check_host
from stele.log.clocks import ConditionTimer
from stele.log.errors import OtherHistoryError
from stele.log.follower import Floor, LogFollower
from stele.runtime.logs import get_logger
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

# Decides whether a data directory may follow a log that may have been recovered since.
#
# Epochs that this node acted upon may be lost then. The node may hold data that the cluster does
# not have, and lack data that it moved away. It therefore serves nothing until an operator accepts
# the loss, by the old log's id. The acceptance is noted on the disk.


SETTING: Final = "STELE_ACCEPT_LOST_EPOCHS"
SHOWN: Final = 5
"""How many ids of unknown data a text names."""


class Binding(msgspec.Struct, frozen=True):
    """The result of ``binding``.

    ``refused`` is the reason why the node may not follow the log. ``loss`` is the loss that it
    accepts by following. If ``is_older``, the log is an earlier incarnation, and may continue as
    the node's own log.
    """

    refused: str = ""
    loss: AcceptedLoss | None = None
    is_older: bool = False


FREE: Final = Binding()


def binding(identity: Identity, image: Image, accept: str) -> Binding:
    """Return whether a directory may follow the image's log.

    ``accept`` is the id of the log whose loss an operator accepts.
    """
    if identity.cluster_id and identity.cluster_id != image.cluster_id:
        begun = image.overrides.begun_with
        if begun is None or begun.of_cluster_id != identity.cluster_id:
            return Binding(_other("cluster id", identity.cluster_id, image.cluster_id))
        return _bound_to_another(identity, image, accept)
    if not identity.log_id:
        return FREE
    told = identity.acknowledged
    status = epoch_status(image.founding, identity.log_id, told.epoch, told.state_id)
    if status is EpochStatus.HERE and accept == identity.log_id:
        return Binding(
            f"{SETTING}={accept} names the log that this node follows; what it lost can be accepted once it was"
            " recovered as another one. Start the node without it; if it says then that the log has lost"
            " winners, `stele recover --force` first"
        )
    # An accepted epoch was not compared with any archive. A log recovered by force may have another
    # epoch of that number.
    is_here = status is EpochStatus.HERE or (
        status is EpochStatus.KEPT and accept != identity.log_id
    )
    return FREE if is_here else _bound_to_another(identity, image, accept)


def _bound_to_another(identity: Identity, image: Image, accept: str) -> Binding:
    """Return the binding to another log: an older incarnation, a refusal, or an accepted loss."""
    now, told = image.log_id.hex(), identity.acknowledged
    # Recovery only creates greater ids: a smaller one is an earlier incarnation, not a loss.
    if now < identity.log_id:
        return Binding(_other("log", identity.log_id, now), is_older=True)
    before = incarnation(image.founding, identity.log_id)
    last_epoch = 0 if before is None else before.last_epoch
    if accept != identity.log_id:
        return Binding(_lost(identity, now, last_epoch))
    kept_epoch = max(0, min(last_epoch, told.epoch - 1))
    return Binding(loss=AcceptedLoss(identity.log_id, told.epoch, kept_epoch, now))


def unknown_data_text(data_ids: Collection[str]) -> str:
    """Return the warning of a node that keeps rows of unknown data; empty if it keeps none."""
    if not data_ids:
        return ""
    shown = sorted(data_ids)
    named = ", ".join(shown[:SHOWN]) + (", ..." if len(shown) > SHOWN else "")
    return (
        f"This node keeps rows of data that the log does not know: {named}. The epochs that created it were"
        " lost and the loss was accepted, or it was dropped shortly before. No cleanup deletes these rows. If"
        " they are needed, recover the log from a history that has those epochs (`stele recover --take`). If"
        " not, replace this node: its new directory does not have them"
    )


def other_history(identity: Identity, why: str) -> str:
    """Return the error text for a log that turns out to be another one before anything was read."""
    return (
        f"{why} Give the node the log that it belongs to. If it was recovered without that epoch, accept the"
        f" loss: start the node with {SETTING}={identity.log_id}, and then repair what it holds"
    )


def _lost(identity: Identity, now: str, last_epoch: int) -> str:
    told = identity.acknowledged
    if last_epoch:
        what = f"was recovered after epoch {last_epoch} as log {now}"
        lost = (
            f"epochs {last_epoch + 1} to {told.epoch} are lost"
            if told.epoch > last_epoch
            else f"its epoch {told.epoch} is another one there"
        )
    else:
        what, lost = f"does not lead to this log, {now}", "what it acted upon there may be lost"
    return (
        f"this node acknowledged epoch {told.epoch} (version {told.version}, fence {told.fence_version}) of"
        f" log {identity.log_id}, which {what}: {lost}. It may hold data that the cluster does not know of, and"
        " lack what it moved away. Give it the log that it belongs to, or an empty folder and a new name; or"
        f" accept the loss: start it with {SETTING}={identity.log_id}, and then repair what it holds"
    )


def _other(what: str, mine: str, theirs: str) -> str:
    return (
        f"the data is of {what} {mine}; this log is of {what} {theirs}: give the node the log that it belongs"
        " to, or an empty folder and a new name"
    )


PATIENCE_S: Final = 60.0
"""Time for which the log may end too early before that is reported, in seconds.

A partitioned broker may show an old end of the log for some time. A lost end never returns.
"""
LOOK_S: Final = 0.05
CATCHING_UP: Final = "catching_up"

log = get_logger(__name__)


class Closed(msgspec.Struct, frozen=True):
    """The reason why nothing is served: a code and a sentence."""

    code: str
    message: str


class NotThisReplica(ConfigurationError):
    """The log has another replica or another history than this data directory."""


class Gate:
    """Opens when the log that ``follower`` reads confirms the node's identity.

    The follower must have the directory's ``floor_of``. ``accept`` is the id of a log whose lost
    epochs an operator accepts (``lost_epochs``). ``claims`` is the host id of a free place that the
    directory may take.
    """

    def __init__(
        self, directory: DataDirectory, follower: LogFollower, accept: str = "", claims: str = ""
    ) -> None:
        self.failure: NotThisReplica | None = None
        self.ack_unknown = ""
        """The reason why the node's last ack is not known yet; empty once it is known."""
        self._lacks = ""
        """Message that the log lacks acknowledged epochs; empty before ``PATIENCE_S``."""
        self._directory = directory
        self._accept = accept
        self._claims = claims
        self._loss: AcceptedLoss | None = None
        self._older = ""
        """Why the log must not be followed, unless a later incarnation follows; else empty."""
        self._follower = follower
        self._acknowledged = directory.identity.acknowledged
        self._reached = False
        self._open = False
        follower.listen(self._on_epoch)
        self._look(follower.image)

    @property
    def is_open(self) -> bool:
        """True while the node may serve: opened, without a failure of gate or follower."""
        return self._open and self.failure is None and self._follower.failure is None

    def closed(self) -> Closed | None:
        """Return the reason why the node may not serve or acknowledge, or None."""
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
        """Return the reason after the log was read: no cluster, no row, or no last ack yet."""
        image, identity = self._follower.image, self._directory.identity
        if not image.cluster:
            return Closed(
                "not_admitted",
                f"There is no cluster '{identity.cluster}' yet: run `stele found`, or correct STELE_CLUSTER.",
            )
        if self.ack_unknown:
            return Closed(CATCHING_UP, self.ack_unknown)
        row = image.node(identity.node_id)
        if row is not None and row.host_id == identity.host_id:
            return Closed(CATCHING_UP, "The node has found its row in the log, and notes that.")
        return Closed("not_admitted", "The cluster has not yet admitted this node.")

    async def reach(self, caught_up: asyncio.Event, stop: Stop) -> None:
        """Wait until the log was read as far as this node may have acknowledged it.

        If the log ends before that, this waits and reports it. A log that lost its end is recovered
        from the remaining epochs, and this node provides its promise for that.

        Raises NotThisReplica when the log is another one, or has another epoch there.
        """
        short = ConditionTimer()
        while not stop.requested:
            self._raise_failure()
            if caught_up.is_set() and not self._older:
                self._reached = True
                return
            if not self._is_short():
                self._lacks = ""
                short.reset()
            elif self._follower.is_at_end and short.sample(time.monotonic()) > PATIENCE_S:
                self._miss(f"the log ends at epoch {self._follower.image.epoch}", self._older)
            await stop.sleep(LOOK_S)

    def _is_short(self) -> bool:
        """Return whether an acknowledged epoch was not read.

        At the end of the log it is missing.
        """
        follower = self._follower
        is_short = bool(self._older) or follower.image.epoch < self._acknowledged.epoch
        return is_short and follower.failure is None

    def _raise_failure(self) -> None:
        """Raise NotThisReplica if the log contradicts this directory."""
        other = self._follower.failure
        # a floor of other replicas has no meaning for this node
        own = (0, self._acknowledged.epoch)
        if self.failure is None and isinstance(other, OtherHistoryError) and other.epoch in own:
            self.failure = NotThisReplica(
                self._missed(f"the log has another epoch there ({other})")
            )
        if self.failure is not None:
            raise self.failure

    async def recognise(self, stop: Stop) -> None:
        """Wait for the node's row and check its host id, then note it and open the gate.

        Call it after ``reach``. Raises NotThisReplica.
        """
        identity = self._directory.identity
        while not stop.requested:
            image = self._follower.image
            row = image.node(identity.node_id)
            if row is not None:
                self.check_host(image)
            if row is not None and row.host_id == identity.host_id:
                if self._open:
                    return  # all is noted; the agent now notes what it acknowledges
                losses = identity.accepted_losses
                if self._loss is not None:
                    log.warning("lost epochs are accepted", loss=msgspec.to_builtins(self._loss))
                    losses = (*losses, self._loss)
                # After an accepted loss the promise of the old log no longer counts: note this
                # log's epoch.
                keeps = identity.acknowledged.epoch and self._loss is None
                await asyncio.to_thread(
                    self._directory.save,
                    cluster_id=image.cluster_id,
                    log_id=image.log_id.hex(),
                    admitted_by=identity.admitted_by or row.request_id,
                    acknowledged=identity.acknowledged if keeps else acknowledged_at(image),
                    accepted_losses=losses,
                    unknown_data=self._unknown_data(image),
                )
                # Only after the sync: a node that serves must know its log at the next start.
                self._open = True
                return
            await stop.sleep(LOOK_S)

    def _unknown_data(self, image: Image) -> tuple[str, ...]:
        """Return the ids of data that the log lacks although it may not have been dropped.

        They exist only after an accepted loss. Otherwise missing data was dropped: its creation was
        synced before it was stored, and the log has the synced epoch.
        """
        kept = {*self._directory.identity.unknown_data}
        if self._loss is not None:
            kept |= {*self._directory.data_ids()}
        unknown = tuple(sorted(each for each in kept if image.schema.of_data(each) is None))
        if unknown:
            log.error(
                "rows are kept that the log knows no table of", why=unknown_data_text(unknown)
            )
        return unknown

    def check_host(self, image: Image) -> None:
        """Check that the node's row has the host id of this directory.

        Raises NotThisReplica when the row is another directory's, or is gone.
        """
        identity = self._directory.identity
        row = image.node(identity.node_id)
        refused = None if row is None else check_host(row, identity.host_id, self._claims)
        if refused is not None:
            raise NotThisReplica(
                f"{refused.code}: {self._directory.folder}: {refused.message} {refused.hint}"
            )
        if row is None and identity.admitted_by and not awaits_state(image):
            raise NotThisReplica(
                f"the log does not know node '{identity.node_id}', which request {identity.admitted_by}"
                f" made a member: {_why_unknown(image)}"
            )

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._look(image)

    def _look(self, image: Image) -> None:
        # A log that is empty, or awaits its imported state, proves nothing about this directory.
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
            f" {told.state_id}), but {why}: the log was truncated, restored or recreated, or the broker is"
            " cut off from it. Bring the log back, or recover it and accept the loss"
        )


def acknowledged_at(image: Image) -> Acknowledged:
    """Return the record to put on the disk before an ack contains the image's version and fence."""
    topology = image.topology
    return Acknowledged(image.epoch, image.state_id.hex(), topology.version, topology.fence_version)


def _why_unknown(image: Image) -> str:
    if image.founding.incarnations:
        return (
            "it was admitted in an epoch that was lost, or the log lost its end; give it an empty folder, so"
            " that it joins again, or restore the log"
        )
    return "the log was recreated or lost its end; restore it"


def floor_of(identity: Identity, accept: str = "") -> Floor | None:
    """Return the epoch that a follower must reach before it is up to date.

    Returns None before the first ack, and when the loss of that log is accepted.
    """
    acknowledged = identity.acknowledged
    if not acknowledged.epoch or (accept and accept == identity.log_id):
        return None
    return Floor(acknowledged.epoch, bytes.fromhex(acknowledged.state_id), log_id=identity.log_id)
