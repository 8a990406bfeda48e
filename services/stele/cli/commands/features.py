"""``stele features list|enable|forget``: what builds can do, and what is switched on."""

from __future__ import annotations

from cyclopts import App

from stele.cli.options import Change, Read, Where
from stele.cli.output import console, print_value_as_json, table
from stele.domain.commands import AnyCommand, EnableFeatures, ForgetService
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
) -> None:
    """Enable features that every member and service supports. There is no way back to older builds.

    Args:
        names: The features.
    """
    epoch = _submit(EnableFeatures(names), change, where)
    console().print(f"{', '.join(names)} enabled since epoch {epoch}", soft_wrap=True)


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
    for service_id in service_ids:
        epoch = _submit(ForgetService(service_id), change, where)
        console().print(f"{service_id} is forgotten since epoch {epoch}", soft_wrap=True)


def _submit(command: AnyCommand, change: Change, where: Where) -> int:
    """The epoch that it became. Raises CliError."""
    envelope = change.envelope(command)
    with where.client() as client:
        console().print(f"request {envelope.request_id}", soft_wrap=True)
        return client.submit(envelope).epoch
