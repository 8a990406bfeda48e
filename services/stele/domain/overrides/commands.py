"""Commands by which an operator puts a state in the place of the log's own."""

from stele.domain.base import Command


class RevertState(Command, frozen=True, tag="revert_state", kw_only=True):
    """What was true at ``to_epoch`` is to be true again, as a new epoch (Cassandra's unsafe revert).

    ``content`` is the state then (``overrides.content``), which the metadata log fills in from its history.
    """

    to_epoch: int
    accept_loss: bool = False
    content: bytes = b""


class LoadState(Command, frozen=True, tag="load_state", kw_only=True):
    """The state in ``content`` (``overrides.content``) is to be true from now on.

    ``founds``: it is the first one of a cluster that was founded for it; the nodes in it have yet to come.
    ``of_*`` say what it was a state of, as in ``Override``.
    """

    content: bytes
    founds: bool = False
    accept_loss: bool = False
    of_epoch: int = 0
    of_cluster_id: str = ""
    of_log_id: str = ""


OverridesCommand = RevertState | LoadState
