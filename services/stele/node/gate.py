"""When a node may serve and acknowledge: not before the log has shown that it is who it was (I6, I13).

Closed at the start. It opens once the log was read at least to the newest epoch that this node has
acknowledged a version or a fence at, that epoch is the same one (its state id), the cluster is the one that
admitted the node, and the node's row carries this directory's host id. What contradicts that ends the
process: nothing the node could serve would be right.
"""

import asyncio
import time
from typing import Final

import msgspec

from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.log.follower import LogFollower
from stele.node.identity import Acknowledged, DataDirectory
from stele.runtime.service import Stop
from stele.runtime.settings import ConfigurationError

PATIENCE_S: Final = 60.0
"""A broker that was cut off may show an old end of the log for some time; a lost end never comes back."""
LOOK_S: Final = 0.05


class Closed(msgspec.Struct, frozen=True):
    """Why nothing is served: a code and a sentence."""

    code: str
    message: str


class NotThisReplica(ConfigurationError):
    """The log knows another replica, or another history, than this data directory."""


class Gate:
    """Make it before the follower has read anything: it compares an epoch as that passes by."""

    def __init__(self, directory: DataDirectory, follower: LogFollower) -> None:
        self.failure: NotThisReplica | None = None
        self._directory = directory
        self._follower = follower
        self._floor = directory.identity.acknowledged
        self._caught_up = False
        self._open = False
        if 0 < self._floor.epoch < follower.image.epoch:
            self._fail("the log was read from later on; the epoch cannot be compared any more")
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
        if not self._caught_up or epoch < self._floor.epoch:
            least = f", not yet at {self._floor.epoch}" if epoch < self._floor.epoch else ""
            return Closed("catching_up", f"The node is reading the log: at epoch {epoch}{least}.")
        return Closed("not_admitted", "The cluster has not yet admitted this node.")

    async def reach(self, caught_up: asyncio.Event, stop: Stop) -> None:
        """Returns once the log was read as far as this node may have acknowledged it.

        Raises NotThisReplica when the log is another one, or does not have that epoch.
        """
        since_s: float | None = None
        while not stop.requested:
            if self.failure is not None:
                raise self.failure
            if caught_up.is_set():
                self._caught_up = True
                if self._follower.image.epoch >= self._floor.epoch:
                    return
                now_s = time.monotonic()
                since_s = now_s if since_s is None else since_s
                if now_s - since_s > PATIENCE_S:
                    self._fail(f"the log ends at epoch {self._follower.image.epoch}")
            await stop.sleep(LOOK_S)

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
                await asyncio.to_thread(
                    self._directory.save,
                    cluster_id=image.cluster_id,
                    log_id=image.log_id.hex(),
                    admitted_by=identity.admitted_by or identity.join_request_id,
                    acknowledged=identity.acknowledged if self._floor.epoch else noted(image),
                )
                self._open = True
                return
            await stop.sleep(LOOK_S)

    def check_host(self, image: Image) -> None:
        """Raises NotThisReplica when the node's row is of another data directory, or is gone."""
        identity = self._directory.identity
        row = image.node(identity.node_id)
        if row is not None and row.host_id != identity.host_id:
            raise NotThisReplica(
                f"host_id_mismatch: node '{identity.node_id}' is host {row.host_id or '(none)'} in the log,"
                f" {self._directory.folder} is host {identity.host_id}: this is not the replica that the"
                " cluster knows: restore its data directory, or give the node a new name and remove or"
                " replace the old one"
            )
        if row is None and identity.admitted_by:
            raise NotThisReplica(
                f"the log does not know node '{identity.node_id}', which request {identity.admitted_by}"
                " made a member: the log was made anew or lost its end; bring it back"
            )

    def _on_epoch(self, image: Image, _: Delta) -> None:
        self._look(image)

    def _look(self, image: Image) -> None:
        identity, floor = self._directory.identity, self._floor
        if self._open or self.failure is not None:
            return
        if identity.cluster_id and image.cluster_id not in ("", identity.cluster_id):
            self.failure = NotThisReplica(
                f"{self._directory.folder} holds data of cluster id {identity.cluster_id}; this log is of"
                f" cluster id {image.cluster_id}: give the node the log that it belongs to, or an empty"
                " folder and a new name"
            )
        if image.epoch == floor.epoch and floor.epoch and image.state_id.hex() != floor.state_id:
            self._fail(
                f"the log's epoch {floor.epoch} is another one (state {image.state_id.hex()})"
            )

    def _fail(self, why: str) -> None:
        floor = self._floor
        self.failure = NotThisReplica(
            f"This node acknowledged fence {floor.fence_version} at epoch {floor.epoch} (state"
            f" {floor.state_id}), but {why}: the log was truncated, restored or made anew, or the broker is"
            " cut off from it. Bring the log back, or recover it and accept the loss"
        )


def noted(image: Image) -> Acknowledged:
    """What is put on the disk before an ack tells the image's version and fence."""
    topology = image.topology
    return Acknowledged(image.epoch, image.state_id.hex(), topology.version, topology.fence_version)
