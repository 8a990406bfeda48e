"""``stele found``: the first epoch of an empty log. An empty topic alone is no new cluster."""

from __future__ import annotations

from stele.cli.options import Change, Where
from stele.cli.output import console
from stele.domain.commands import FoundCluster


def found(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Make the cluster in an empty log; when it is there already, say so and change nothing.

    It is refused where something tells of an older cluster of the same name, whose log may be lost.
    """
    envelope = change.envelope(FoundCluster())
    with where.client() as client:
        console().print(f"request {envelope.request_id}", soft_wrap=True)
        outcome = client.submit(envelope)
    console().print(
        f"log {outcome.log_id} holds the cluster; epoch {outcome.epoch}", soft_wrap=True
    )
