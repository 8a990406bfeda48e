"""Facts: what is now true. An epoch carries a list of them, and they hold all or none.

A fact is an entity's new row, or the rows of a placement that changed. It carries computed results, so
that folding needs no decision: a snapshot of an image is the same facts, written from nothing.
"""

import msgspec

from stele.domain.cluster.facts import ClusterFact
from stele.domain.requests.facts import DecidedFact
from stele.domain.services.facts import ServicesFact
from stele.domain.staging.facts import StagedFact, StagingFact

AnyFact = ClusterFact | StagedFact | ServicesFact | DecidedFact | StagingFact


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log (design, section 1). Ids of states and logs are 16 bytes, ordered by time.

    The witness is the newest winner that the writer had read from the log. A barrier has no request id and no
    digest: nobody asks for it again.
    """

    prev_state_id: bytes
    state_id: bytes
    log_id: bytes = bytes(16)
    witness_state_id: bytes = bytes(16)
    epoch: int
    witness_epoch: int = 0
    request_id: str
    command: str
    facts: tuple[AnyFact, ...]
    command_digest: bytes = bytes(16)
    actor: str = ""
    reason: str = ""
    origin: str = ""
    at_ms: int = 0
    required_features: tuple[str, ...] = ()
