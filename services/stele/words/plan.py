"""A plan in tables: what a command would do, whether it can, how much it moves and how long that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stele.domain.commands import Rejection
from stele.domain.schema.facts import TABLET_MAP
from stele.domain.topology.preflight import PlannedPlacement, PlannedStep, Preflight
from stele.runtime.answers.plans import PlanAnswer, Verdict
from stele.words.explain import BY_LIMIT, UNKNOWN, waiting_line
from stele.words.requests import what
from stele.words.tables import table
from stele.words.units import counted, duration, joined, percent, size


def plan_parts(found: PlanAnswer, names: Mapping[str, str]) -> Iterator[RenderableType]:
    """Verdict, concerns, steps, shares and streams of a plan; ``names`` are of keyspaces and tables by id."""
    plan = found.plan
    nodes = tuple(r.node_id for r in plan.requests() if r.node_id) or plan.request.dead_nodes
    about = f"{plan.request.kind} {joined(nodes)}" if nodes else what(plan.request, names)
    yield Text(f"plan of {about} at epoch {found.epoch}; nothing is done", style="bold")
    yield from _verdict(found)
    if plan.excludes:
        yield Text(f"declares dead for good: {joined(plan.excludes)}", style="yellow")
    for concern in plan.concerns:
        part = percent(concern.share, 1)
        yield Text(
            f"mind: {concern.message} ({part} of placement {_name(concern.placement, plan)})",
            style="red",
        )
    yield from (Text(line) for line in plan.foreseen)
    if plan.steps:
        yield _steps(plan.steps)
    yield from map(_placement, plan.placements)
    if plan.placements:
        yield _shares(plan)
    if found.streams:
        yield _streams(found)
        yield Text(_total(found))


def _verdict(found: PlanAnswer) -> Iterator[Text]:
    match found.verdict:
        case Verdict.STARTS:
            yield Text("it would start at once", style="green")
        case Verdict.WAITS:
            assert found.wait is not None
            yield Text(f"it {waiting_line(found.wait, 'would wait')}", style="yellow")
        case Verdict.FAILS:
            yield Text(f"it would fail: {_words(found.failure)}", style="red")
    refusal = found.plan.refusal
    if refusal is not None and found.verdict is not Verdict.FAILS:
        yield Text(f"no room now: {_words(refusal)}", style="yellow")
    if found.plan.steps and not found.plan.alone:
        yield Text(
            "others are under way or waiting: it is planned anew when it starts", style="dim"
        )


def _words(rejection: Rejection | None) -> str:
    return "" if rejection is None else f"{rejection.message} {rejection.hint}".rstrip()


def _steps(steps: tuple[PlannedStep, ...]) -> Table:
    shown = table("steps", "step", "streams", "can be cancelled")
    for step in steps:
        undo = "yes" if step.can_be_undone else "no"
        shown.add_row(step.state, "yes" if step.streams else "", undo)
    return shown


def _placement(placement: PlannedPlacement) -> Text:
    names = ", ".join(placement.keyspaces)
    if placement.placement.startswith(TABLET_MAP):
        whose, changing = names, counted(placement.changing, "tablet changes", "tablets change")
    else:
        whose = f"placement {placement.placement} ({names})"
        changing = counted(placement.changing, "range changes", "ranges change")
    share = percent(placement.changing_share, 1)
    return Text(f"{whose}: {changing}, {share} of the ring; it has {placement.ranges} now")


def _name(placement: str, plan: Preflight) -> str:
    """Of a table's tablets the table's name, else the placement's own."""
    if placement.startswith(TABLET_MAP):
        found = (each.keyspaces for each in plan.placements if each.placement == placement)
        return ", ".join(next(found, ())) or placement
    return placement


def _shares(plan: Preflight) -> Table:
    """Of the ring, how much each node and each rack holds: 100 % is one copy of everything."""
    columns = ("placement", "of", "before", "after")
    shown = table("copies held", *columns, right=("before", "after"))
    for placement in plan.placements:
        for name, share in (*placement.racks.items(), *placement.nodes.items()):
            style = "bold" if share.before != share.after else ""
            before, after = _copies(share.before), _copies(share.after)
            shown.add_row(_name(placement.placement, plan), name, before, after, style=style)
    return shown


def _copies(share: float) -> str:
    return f"{100 * share:.1f} %"


def _streams(found: PlanAnswer) -> Table:
    columns = ("node", "ranges", "of the ring", "from", "bytes", "takes")
    shown = table("streams", *columns, right=("ranges", "of the ring", "bytes", "takes"))
    for stream in found.streams:
        gains = [gain for gain in found.plan.gains if gain.node_id == stream.node_id]
        sources = {
            f"{gain.needed} of {joined(gain.sources)}" if gain.needed < len(gain.sources)
            else joined(gain.sources)
            for gain in gains
        }  # fmt: skip
        shown.add_row(
            stream.node_id,
            str(sum(gain.ranges for gain in gains)),
            _copies(stream.share),
            "; ".join(sorted(sources)),
            _bytes(stream.size_bytes),
            _time(stream.duration_s, found),
        )
    return shown


def _total(found: PlanAnswer) -> str:
    return (
        f"to move: {_bytes(found.size_bytes)}; it takes {_time(found.duration_s, found)} ({_rate(found)});"
        f" estimated from what {counted(len(found.held_bytes), 'node holds', 'nodes hold')}"
    )


def _rate(found: PlanAnswer) -> str:
    rate = found.bytes_per_s
    if rate is None:
        return "no rate was measured yet"
    by = f" {BY_LIMIT}" if rate == found.limit_bytes_per_s else ""
    return f"{size(rate)}/s a node{by}{', no rate was measured yet' if found.at_least else ''}"


def _bytes(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"about {size(size_bytes)}"


def _time(duration_s: float | None, found: PlanAnswer) -> str:
    if duration_s is None:
        return UNKNOWN
    return f"{'at least' if found.at_least else 'about'} {duration(duration_s)}"
