"""``stele features list|enable|forget``: features of builds, and which are enabled."""

from __future__ import annotations

from cyclopts import App

from stele.cli.commands.topology import ask_and_follow
from stele.cli.options import Change, FollowedChange, Format, ReadPoint, Where
from stele.cli.output import print_line, table
from stele.domain.commands import EnableFeatures, ForgetService
from stele.domain.names import NodeState

app = App(name="features", help="Features: who supports which, and which are enabled.")


@app.command(name="list")
def list_features(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List the enabled features, and the features that each member and service supports."""
    with where.client() as client:
        reading = read.of(client)
        enabled = reading.features()
        services = reading.services()
        members = [node for node in reading.nodes() if node.state is not NodeState.LEFT]
    if form.is_document:
        form.print_document(
            reading.document(
                features=enabled,
                services=services,
                nodes={node.node_id: node.supported_features for node in members},
            )
        )
        return
    form.note(f"enabled: {', '.join(enabled) or 'none'}")
    shown = table(f"support at epoch {reading.epoch}", "process", "release", "supports")
    for service in services:
        supported = ", ".join(service.supported_features)
        shown.add_row(service.service_id, service.release_version, supported)
    for node in members:
        shown.add_row(node.node_id, node.release_version, ", ".join(node.supported_features))
    form.print_table(shown)


@app.command
def enable(
    *names: str,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Enable features that every member and service supports. This cannot be undone.

    The command waits until every member has acknowledged them. Older builds can then no longer join.

    Args:
        names: Features from `stele features list`.
    """
    return ask_and_follow(where, change, EnableFeatures(names))


@app.command
def forget(
    *service_ids: str,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Forget services that never come back. A service that still runs announces itself again.

    Args:
        service_ids: Ids from `stele features list`, such as coordinator/c-1.
    """
    with where.client() as client:
        for service_id in service_ids:
            epoch = change.send(client, ForgetService(service_id)).epoch
            print_line(f"{service_id} is forgotten since epoch {epoch}")
