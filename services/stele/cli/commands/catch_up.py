"""``stele catch-up show|reconfigure|forget``: the replicas that keep the archive of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.client import ask, replicas_of
from stele.cli.commands.topology import submit_and_follow
from stele.cli.errors import CliError, UsageError
from stele.cli.options import Change, FollowedChange, Force, Json, ReadPoint, Where
from stele.cli.output import (
    ago,
    clock,
    console,
    counted,
    joined,
    print_fields,
    print_line,
    print_value_as_json,
    size,
    styled,
    table,
)
from stele.domain.commands import Cancel, ForgetReplica, ReconfigureCatchUp
from stele.domain.model.archive import ReplicaSummary
from stele.domain.names import ReplicaState, WaitKind
from stele.runtime.answers.coordinator import Progress, ReplicaProgress
from stele.runtime.answers.metadata_log import CatchUpAnswer

app = App(
    name="catch-up", help="Replicas that keep the archive of the log: show, reconfigure, forget."
)

EITHER_WAY = "Say who is to be a member, such as 3 or dc1=2,dc2=1, or --cancel."


@app.command
def show(read: ReadPoint = ReadPoint(), json: Json = Json(), where: Where = Where()) -> None:
    """List the catch-up replicas: members, liveness, their epochs, and where the log is truncated.

    The log is truncated only behind snapshots that a majority of the members has announced alike.
    """
    with where.client() as client:
        found = read.of(client).catch_up()
        progress = ask(client, "coordinator", "/v1/progress", Progress)
        replicas = replicas_of(client)
    troubles = {url: each.trouble for url, each in replicas.items() if each.trouble}
    if json.as_json:
        heard = {} if progress is None else progress.replicas
        print_value_as_json({"catch_up": found, "replicas": heard, "troubles": troubles})
        return
    print_fields(_fields(found))
    for url, trouble in troubles.items():
        told = f"{replicas[url].replica_id} ({url}): {trouble}"
        print_line(Text(told, style="red"))
    for line in _warnings(found, progress):
        print_line(Text(line, style="yellow"))
    console().print(_replicas(found, {} if progress is None else progress.replicas))
    if found.readers:
        shown = table("readers", "reader", "epoch", "since", right=("epoch",))
        for each in found.readers:
            shown.add_row(each.reader_id, str(each.epoch), clock(each.moved_ms))
        console().print(shown)


def _fields(found: CatchUpAnswer) -> Iterator[tuple[str, str]]:
    """Yield the fields about all replicas."""
    members = [r for r in found.replicas if r.state is ReplicaState.MEMBER]
    yield "members", f"{len(members)}; archive_replication is {found.archive_replication}"
    if found.agreed:
        newest = found.agreed[0]
        yield "snapshot", f"of epoch {newest.epoch}, which {joined(newest.members)} have"
    else:
        yield "snapshot", "none that a majority of the members has"
    begins = found.archive.truncated
    yield "log", "has all epochs" if begins is None else f"begins at epoch {begins.epoch}"
    more = found.truncation
    upto = f"up to epoch {more.epoch}" if more.epoch else "no further"
    yield "truncation", f"{upto}: {more.why_not_more}"
    trimmed, next_ = found.archive.trimmed, found.trimming
    older = "has all epochs" if trimmed is None else f"begins at epoch {trimmed.epoch}"
    if trimmed is not None and trimmed.stores:
        older += f"; older ones are in {joined(trimmed.stores)}"
    yield "archive", older
    then = f"epoch {next_.trim.epoch}" if next_.trim is not None else next_.why_not
    yield "trimming", then


def _warnings(found: CatchUpAnswer, progress: Progress | None) -> Iterator[str]:
    for each in found.replicas:
        if each.diverged:
            epochs = ", ".join(map(str, each.diverged))
            other = f"{each.replica_id} has diverged: its snapshot of epoch {epochs}"
            yield f"{other} is not the members', and does not count"
        if each.began_anew:
            times = counted(each.began_anew, "time", "times")
            yield f"{each.replica_id} has diverged {times}, set its files aside, and started empty"
    for wait in () if progress is None else progress.waits:
        if wait.kind is WaitKind.ARCHIVE:
            yield f"waits for {wait.waiting_for}"


def _replicas(found: CatchUpAnswer, heard: dict[str, ReplicaProgress]) -> object:
    columns = ("replica", "dc", "rack", "state", "heard", "lag", "snapshot", "epochs", "size")
    right = ("lag", "snapshot", "size")
    shown = table(f"catch-up replicas at epoch {found.epoch}", *columns, "address", right=right)
    for each in found.replicas:
        newest = each.snapshots[-1] if each.snapshots else None
        shown.add_row(
            each.replica_id,
            each.dc,
            each.rack,
            each.state,
            *_liveness(found, heard.get(each.replica_id)),
            "" if newest is None else str(newest.epoch),
            _epochs(each),
            "" if newest is None else size(newest.size_bytes),
            each.address,
        )
    return shown


def _liveness(found: CatchUpAnswer, heard: ReplicaProgress | None) -> tuple[Text, str]:
    """Return the time since the last message and the lag in epochs.

    Without a coordinator both are unknown.
    """
    if heard is None:
        return styled("unknown"), ""
    if heard.silent_for_s is None:
        return styled("down"), ""
    told = ago(heard.silent_for_s)
    if heard.is_down:
        return Text(f"down, {told}", style="red"), ""
    return Text(told), str(max(0, found.epoch - heard.epoch))


def _epochs(replica: ReplicaSummary) -> str:
    """Return the epochs that the replica has announced."""
    if not replica.snapshots:
        return "none announced"
    newest = replica.snapshots[-1]
    return f"{newest.first_epoch} to {newest.epoch}"


@app.command
def reconfigure(
    *replication: str,
    retire: Annotated[tuple[str, ...], Parameter(name="--retire", negative="")] = (),
    cancel: Annotated[bool, Parameter(name="--cancel", negative="")] = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Change the members among the catch-up replicas, one at a time.

    Live replicas are preferred, spread over datacentres and racks. Members stay before others join. A request
    waits while another one runs. From then on, dead members are replaced so that the number stays.

    Args:
        replication: Number of members, as 3, or by datacentre, as dc1=2 dc2=1. Default: the setting
            archive_replication, limited by the number of replicas.
        retire: A member to replace by another replica; may be repeated. It stays a candidate: stop it and run
            `stele catch-up forget`, or it may be chosen again.
        cancel: Cancel the running change. Replicas that became members stay members.
    """
    if cancel and (replication or retire):
        raise UsageError("A change is either asked for or cancelled.", EITHER_WAY)
    with where.client() as client:
        if not cancel:
            asked = ReconfigureCatchUp(replication=",".join(replication), retired=retire)
            return submit_and_follow(client, change, asked)
        requests = ReadPoint().of(client).requests(unfinished="true")
        under_way = [request for request in requests if request.reconfigures]
        if not under_way:
            raise CliError("No change of the members is under way.", "`stele requests` shows all.")
        envelope = change.envelope(Cancel(under_way[0].request_id))
        epoch = change.submit(client, envelope).epoch
        print_line(f"{under_way[0].request_id} is cancelled since epoch {epoch}")
        return 0


@app.command
def forget(
    *replica_ids: str,
    force: Force = False,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Forget replicas that never come back. A replica that still runs announces itself again.

    A member is forgotten only if the others have everything that was deleted from the log.

    Args:
        replica_ids: Ids from `stele catch-up show`.
        force: Forget a member even if its epochs or snapshots are then lost.
    """
    with where.client() as client:
        for replica_id in replica_ids:
            epoch = change.send(client, ForgetReplica(replica_id=replica_id, force=force)).epoch
            print_line(f"{replica_id} is forgotten since epoch {epoch}")
