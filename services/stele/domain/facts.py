"""Facts: statements that an epoch makes true.

An epoch has a list of them, applied together or not at all.

A fact is an entity's new row, or the rows of a placement that changed. It carries computed results,
so that folding needs no decision (docs/design.md, rule 6). A snapshot of an image consists of the
same facts, from the empty image on.
"""

import msgspec

from stele.domain.model.cluster import ClusterFact
from stele.domain.model.requests import DecidedFact
from stele.domain.model.services import ServicesFact
from stele.domain.staging import StagedFact, StagingFact

AnyFact = ClusterFact | StagedFact | ServicesFact | DecidedFact | StagingFact


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log (docs/design.md, "The log"). Ids of states and logs are 16 bytes,
    ordered by time.

    The witness is the newest winner that the writer had read from the log. A barrier has no request
    id and no digest, because no caller repeats it.
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
