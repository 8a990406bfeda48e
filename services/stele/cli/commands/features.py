"""``stele features list|enable|forget``: what builds can do, and what is switched on."""

from __future__ import annotations

from cyclopts import App

from stele.cli.commands.topology import submit_and_follow
from stele.cli.options import Change, Read, Where
from stele.cli.output import console, print_value_as_json, table
from stele.domain.commands import EnableFeatures, ForgetService
from stele.domain.names import NodeState

app = App(name="features", help="Features: who supports which, and which are enabled.")


@app.command(name="list")
def list_features(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """The features that are enabled, and what every member and service supports."""
    with where.client() as client:
        reading = read.of(client)
        enabled = reading.features()
        services = reading.services()
        members = [node for node in reading.nodes() if node.state is not NodeState.LEFT]
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "features": enabled,
                "services": services,
                "nodes": {node.node_id: node.supported_features for node in members},
            }
        )
        return
    console().print(f"enabled: {', '.join(enabled) or 'none'}", soft_wrap=True)
    shown = table(f"support at epoch {reading.epoch}", "process", "release", "supports")
    for service in services:
        supported = ", ".join(service.supported_features)
        shown.add_row(service.service_id, service.release_version, supported)
    for node in members:
        shown.add_row(node.node_id, node.release_version, ", ".join(node.supported_features))
    console().print(shown)


@app.command
def enable(
    *names: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Enable features that every member and service supports, once every member has acknowledged that.

    There is no way back to older builds.

    Args:
        names: The features.
    """
    with where.client() as client:
        return submit_and_follow(client, change, EnableFeatures(names))


@app.command
def forget(
    *service_ids: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Wait no longer for services that never come back. One that runs announces itself again.

    Args:
        service_ids: As `stele features list` shows them, such as coordinator/c-1.
    """
    with where.client() as client:
        for service_id in service_ids:
            envelope = change.envelope(ForgetService(service_id))
            console().print(f"request {envelope.request_id}", soft_wrap=True)
            epoch = change.submit(client, envelope).epoch
            console().print(f"{service_id} is forgotten since epoch {epoch}", soft_wrap=True)
