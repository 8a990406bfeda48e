"""What an override leaves behind: which state took the place of which, and where it came from."""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import OverrideKind


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """The other facts of ``epoch`` made another state true; hashes are those of ``content_hash``.

    What it was made from: the state at ``of_epoch`` of the log ``of_log_id`` (32 hex digits) of the cluster
    ``of_cluster_id``; empty: nobody knows. ``accept_loss``: rows that the new replicas may lack were given up,
    and with them tables and keyspaces that are not in it. ``above_version``: no topology version of the state
    before is greater, every one from now on is.
    """

    epoch: int
    kind: OverrideKind
    of_epoch: int
    of_cluster_id: str
    of_log_id: str
    hash_before: str
    hash_after: str
    above_version: int
    accept_loss: bool = False


class StateReplaced(Fact, frozen=True):
    """It comes behind the facts that replace the state."""

    override: Override


OverridesFact = StateReplaced


class OverridesImage(msgspec.Struct, frozen=True):
    """``begun_with`` is what the cluster was founded with, ``last`` the newest override since."""

    begun_with: Override | None = None
    last: Override | None = None
