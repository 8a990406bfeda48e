"""The record of an override: the replaced and the new state, and the origin of the new one."""

from __future__ import annotations

import msgspec

from stele.domain.base import Command, Fact
from stele.domain.names import OverrideKind


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an override in ``epoch``, whose other facts made another state true.

    The new state is that at ``of_epoch`` of the log ``of_log_id`` (32 hex digits) of the cluster
    ``of_cluster_id``; empty if unknown. ``hash_before`` and ``hash_after`` are those of
    ``content_hash``. ``accept_loss``: rows that the new replicas may lack are given up, and tables
    and keyspaces that are not in the new state. ``above_version``: no topology version of the state
    before is greater, and every later one is.
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
    """The state was replaced. It follows the facts that replace the state."""

    override: Override


OverridesFact = StateReplaced


class OverridesImage(msgspec.Struct, frozen=True):
    """The overrides of the log.

    ``begun_with`` records the state at the founding, ``last`` is the newest override since.
    """

    begun_with: Override | None = None
    last: Override | None = None


# Commands that replace the state of the log. Operators send them.


class RevertState(Command, frozen=True, tag="revert_state", kw_only=True):
    """Make the state at ``to_epoch`` true again, as a new epoch (Cassandra's unsafe revert).

    ``content`` is that state (``domain.overrides.packed_state``), which the metadata log fills in from its
    history.
    """

    to_epoch: int
    accept_loss: bool = False
    content: bytes = b""


class LoadState(Command, frozen=True, tag="load_state", kw_only=True):
    """Make the state in ``content`` (``domain.overrides.packed_state``) true from now on.

    ``founds``: it is the first state of a cluster that was founded for it, and its nodes have yet
    to start. ``of_*`` describe the origin of the state, as in ``Override``.
    """

    content: bytes
    founds: bool = False
    accept_loss: bool = False
    of_epoch: int = 0
    of_cluster_id: str = ""
    of_log_id: str = ""


OverridesCommand = RevertState | LoadState
