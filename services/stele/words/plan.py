"""A plan as text and tables: feasible or not, steps, bytes to move, duration, and delays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stele.domain.commands import Rejection
from stele.domain.names import TABLET_MAP, WaitKind
from stele.domain.preflight import Gain, PlannedPlacement, PlannedStep, Preflight
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.words.explain import BY_LIMIT, UNKNOWN, passes, waiting_line
from stele.words.names import what
from stele.words.operations import TEXTS
from stele.words.units import counted, duration, joined, percent, size, table


def plan_parts(found: PlanAnswer, names: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield a plan: whether it is feasible, its steps, what moves, and what could delay it.

    ``names`` are of keyspaces and tables by id.
    """
    plan = found.plan
    yield _verdict(found, names)
    yield Text(f"planned at epoch {found.epoch}; nothing is done", style="dim")
    if plan.excludes:
        yield Text(f"declares dead for good: {joined(plan.excludes)}", style="yellow")
    if plan.steps:
        yield _steps(plan.steps)
    yield from (_placement(each, plan) for each in plan.placements)
    shares = _shares(plan)
    if shares.row_count:
        yield shares
    if found.streams:
        yield _streams(found)
        yield Text(_total(found))
    yield from _other_work(found)
    for concern in plan.concerns:
        part = percent(concern.share, 1)
        yield Text(
            f"warning: {concern.message} ({part} of {_place(concern.placement, plan)})",
            style="red",
        )
    yield from _delays(found)


def _verdict(found: PlanAnswer, names: Mapping[str, str]) -> Text:
    """Return the first line: the operation, and whether it can be done."""
    plan = found.plan
    nodes = tuple(
        f"{r.replaced_id} by {r.node_id}" if r.replaced_id else r.node_id
        for r in plan.requests()
        if r.node_id
    )
    nodes = nodes or plan.request.dead_nodes
    about = f"{_command(plan)} {joined(nodes)}" if nodes else what(plan.request, names)
    if found.verdict is PlanVerdict.FAILS:
        return Text(f"not feasible: {about} would fail: {_words(found.failure)}", style="red")
    if plan.refusal is not None and found.wait is None:
        return Text(f"not feasible now: {about}: {_words(plan.refusal)}", style="yellow")
    if found.verdict is PlanVerdict.STARTS or (found.wait is not None and passes(found.wait)):
        return Text(f"feasible: {about} starts at once", style="green")
    if found.wait is not None and found.wait.kind is WaitKind.LIVES:
        return Text(f"not feasible now: {about} is for dead nodes", style="red")
    if _waits_for_tablets(found):
        return Text(f"feasible: {about} starts when the tablets have moved", style="green")
    return Text(f"feasible, with a delay: {about} would wait", style="yellow")


def _waits_for_tablets(found: PlanAnswer) -> bool:
    """Return True if only tablets have to move first, which the balancer does."""
    wait = found.wait
    is_room = wait is not None and wait.kind is WaitKind.ROOM and not wait.other_request
    return is_room and bool(found.plan.foreseen)


def _command(plan: Preflight) -> str:
    """Return the command of the operation, such as ``decommission``."""
    kind = str(plan.request.kind)
    return next((each.line for each in TEXTS.values() if each.command == kind), kind)


def _other_work(found: PlanAnswer) -> Iterator[Text]:
    """Yield the work of other services, with the tablets that each node receives."""
    plan = found.plan
    yield from (Text(line) for line in plan.foreseen)
    for stream in found.streams:
        gains = [g for g in plan.gains if g.node_id == stream.node_id]
        moved = [g for g in gains if _has_tablets(g.placement)]
        if not plan.foreseen or not moved or stream.size_bytes is None:
            continue
        part = sum(g.share for g in moved) / (sum(g.share for g in gains) or 1.0)
        time_s = None if stream.duration_s is None else part * stream.duration_s
        tablets = counted(sum(g.ranges for g in moved), "tablet", "tablets")
        size_text = _bytes(round(part * stream.size_bytes))
        yield Text(f"  {tablets} to {stream.node_id}: {size_text}, {_time(time_s, found)}")


def _delays(found: PlanAnswer) -> Iterator[Text]:
    """Yield what could delay the start. A wait that ends by itself is none."""
    plan, wait = found.plan, found.wait
    delays = list[str]()
    is_said = _waits_for_tablets(found) or found.verdict is PlanVerdict.FAILS
    if wait is not None and not is_said and not passes(wait):
        delays.append(waiting_line(wait, "it would wait"))
    elif plan.refusal is not None and not is_said:
        delays.append(_words(plan.refusal))
    if plan.steps and not plan.alone:
        delays.append("other requests are open: the plan is made again when this one starts")
    for delay in delays:
        yield Text(f"could delay it: {delay}", style="yellow")


def _words(rejection: Rejection | None) -> str:
    return "" if rejection is None else f"{rejection.message} {rejection.hint}".rstrip()


def _steps(steps: tuple[PlannedStep, ...]) -> Table:
    shown = table("steps", "step", "streams", "can be cancelled")
    for step in steps:
        undo = "yes" if step.can_be_undone else "no"
        shown.add_row(step.state, "yes" if step.streams else "", undo)
    return shown


def _placement(placement: PlannedPlacement, plan: Preflight) -> Text:
    names = ", ".join(placement.keyspaces)
    if plan.request.resizes:
        return Text(_resize(names, plan))
    if _has_tablets(placement.placement):
        whose, changing = names, counted(placement.changing, "tablet changes", "tablets change")
    else:
        is_own = _is_own(placement.placement, plan)
        whose = f"keyspace {names}" if is_own else f"placement {placement.placement} ({names})"
        changing = counted(placement.changing, "range changes", "ranges change")
    share = percent(placement.changing_share, 1)
    return Text(f"{whose}: {changing}, {share} of the ring; it has {placement.ranges} now")


def _resize(names: str, plan: Preflight) -> str:
    before, after = plan.request.tablet_count_before, plan.request.tablet_count
    text = f"{names}: {counted(before, 'tablet becomes', 'tablets become')} {after}"
    if after > before:
        return f"{text}; no data moves"
    return f"{text}, once the balancer has moved siblings to the same nodes"


def _has_tablets(placement: str) -> bool:
    return placement.startswith(TABLET_MAP)


def _is_own(placement: str, plan: Preflight) -> bool:
    """Return True for the temporary placement of a replication change, named by the request's id.

    The id of a plan is new each time, and no such placement exists.
    """
    return placement in {request.request_id for request in plan.requests()}


def _place(placement: str, plan: Preflight) -> str:
    """Return what a share is of. The message names a table that the plan itself does not change."""
    name = _name(placement, plan)
    if _has_tablets(name):
        return "its tablets"
    return f"keyspace {name}" if _is_own(placement, plan) else f"placement {name}"


def _name(placement: str, plan: Preflight) -> str:
    """Return the name of a table or of a keyspace with its own placement, else the placement's."""
    if _has_tablets(placement) or _is_own(placement, plan):
        found = (each.keyspaces for each in plan.placements if each.placement == placement)
        return ", ".join(next(found, ())) or placement
    return placement


def _shares(plan: Preflight) -> Table:
    """Return the copies of each node and rack that change: 100 % is one copy of everything."""
    columns = ("placement", "of", "before", "after")
    shown = table("copies held", *columns, right=("before", "after"))
    for placement in plan.placements:
        for name, share in (*placement.racks.items(), *placement.nodes.items()):
            if share.before != share.after:
                before, after = _copies(share.before), _copies(share.after)
                shown.add_row(_name(placement.placement, plan), name, before, after)
    return shown


def _copies(share: float) -> str:
    return f"{100 * share:.1f} %"


def _streams(found: PlanAnswer) -> Table:
    gains = found.plan.gains
    of_tablets = [_has_tablets(gain.placement) for gain in gains]
    with_tablets, with_ranges = any(of_tablets), not (of_tablets and all(of_tablets))
    counts = ("ranges",) * with_ranges + ("tablets",) * with_tablets
    columns = ("node", *counts, "from", "bytes", "time")
    shown = table("moves to", *columns, right=("ranges", "tablets", "bytes", "time"))
    for stream in found.streams:
        own = [gain for gain in gains if gain.node_id == stream.node_id]
        tablets = sum(gain.ranges for gain in own if _has_tablets(gain.placement))
        ranges = sum(gain.ranges for gain in own) - tablets
        shown.add_row(
            stream.node_id,
            *(str(ranges),) * with_ranges,
            *(str(tablets),) * with_tablets,
            _sources(own),
            _bytes(stream.size_bytes),
            _time(stream.duration_s, found),
        )
    return shown


def _sources(gains: list[Gain]) -> str:
    """Return the nodes to pull from: ``n1, n2``, ``one of n1, n2``, ``n4; 2 of n1, n2, n3``.

    A forced operation may have no source for ranges whose writes are given up.
    """
    whole = {n for gain in gains if gain.needed >= len(gain.sources) for n in gain.sources}
    parts = {
        f"{'one' if gain.needed == 1 else gain.needed} of {', '.join(sorted(gain.sources))}"
        for gain in gains
        if gain.needed < len(gain.sources)
    }
    return "; ".join(filter(None, (", ".join(sorted(whole)), *sorted(parts)))) or "none"


def _total(found: PlanAnswer) -> str:
    return (
        f"in all: {_bytes(found.size_bytes)}, {_time(found.duration_s, found)} ({_rate(found)});"
        f" estimated from what {counted(len(found.held_bytes), 'node holds', 'nodes hold')},"
        " as if all ranges and tablets had the same density of data"
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
        return "time unknown"
    return f"{'at least' if found.at_least else 'about'} {duration(duration_s)}"
