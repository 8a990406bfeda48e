"""The first epochs of a cluster, made by the production rules without any waiting."""

from collections.abc import Iterable
from random import Random

from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope, Rejection, command_digest, command_name
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.model.requests import uuid7
from stele.log.codec import encode_epoch
from stele.log.record_builder import next_state_id

FOUNDER = "founder"
TERM = 1


class Founding:
    """Commands in, records out; each must be accepted."""

    def __init__(self, seed: str, topic_id: str = "", features: tuple[str, ...] = ()) -> None:
        self.image: Image = EMPTY
        self.records: list[bytes] = []
        self.envelopes: dict[str, Envelope] = {}
        self._random = Random(f"{seed}/founding")
        cluster = f"sim/{self._uuid()}"
        log_id = next_state_id(bytes(16), 0, self._random.getrandbits(74)).hex()
        found = commands.FoundCluster(cluster, log_id, topic_id, enable_features=features)
        self.apply(found)
        self.apply(commands.ClaimCoordinator(FOUNDER, TERM))

    def join_all(self, joins: Iterable[commands.Join]) -> None:
        """Nodes that are there from the beginning."""
        for join in joins:
            request_id = self.apply(join)
            version = self.image.topology.version
            self.apply(commands.Advance(term=TERM, version=version, open=((request_id,),)))
            self._finish()

    def apply(self, command: AnyCommand) -> str:
        """One more epoch; returns its request id. Raises ValueError when the command is refused."""
        envelope = Envelope(request_id=self._uuid(), command=command, actor=FOUNDER)
        decision = decide(self.image, envelope, 0)
        if isinstance(decision, Rejection):
            raise ValueError(f"{command_name(command)}: {decision.message}")
        before = self.image
        log_id = command.log_id if isinstance(command, commands.FoundCluster) else ""
        epoch = Epoch(
            prev_state_id=self.image.state_id,
            state_id=next_state_id(self.image.state_id, 0, self._random.getrandbits(74)),
            log_id=bytes.fromhex(log_id) or before.log_id,
            witness_state_id=before.state_id,
            epoch=before.epoch + 1,
            witness_epoch=before.epoch,
            command_digest=command_digest(command),
            request_id=envelope.request_id,
            command=command_name(command),
            facts=decision,
            actor=FOUNDER,
        )
        self.image = evolve(self.image, epoch)
        self.records.append(encode_epoch(epoch))
        self.envelopes[envelope.request_id] = envelope
        return envelope.request_id

    def _finish(self) -> None:
        """Run rounds until no request is open. No node is up yet, so no acknowledgement is needed."""
        while self.image.topology.transitions:
            topology = self.image.topology
            moves = tuple(
                commands.Move(t.transition_id, t.state, t.session) for t in topology.open()
            )
            self.apply(
                commands.Advance(term=TERM, version=topology.version, moves=moves, fence=True)
            )
        if not self.image.topology.settled():
            self.apply(commands.AdvanceFence(TERM, self.image.topology.version))
        for node_id, node in self.image.membership.normal().items():
            if node.cleanup_since:
                self.apply(commands.FinishCleanup(TERM, node_id, node.cleanup_session()))

    def _uuid(self) -> str:
        return uuid7(0, self._random.getrandbits(74))
