"""Following a request: its steps as they happen, bytes, epochs and an estimate, until it is finished."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.models import ProgressAnswer, StateView
from stele.cli.optional import ask
from stele.cli.output import console, duration
from stele.domain.entities import Request
from stele.domain.names import UNFINISHED, RequestStatus

POLL_S = 0.25
APPEARS_WITHIN_S = 30.0
"""An accepted request is in the state at once; an instance that restarts may lag a little."""


@dataclass(slots=True)
class Seen:
    """What a follower has told already."""

    epoch: int = -1
    step: str = ""
    waiting_for: str = ""
    began: float = field(default_factory=time.monotonic)

    def news(self, view: StateView, request: Request, progress: ProgressAnswer | None) -> list[str]:
        """Lines worth printing since the last look."""
        lines: list[str] = []
        step = _step_of(view, request)
        if step != self.step:
            at = f"{time.monotonic() - self.began:5.1f} s  epoch {view.epoch:>4}"
            lines.append(f"{at}  {step}")
            self.step, self.epoch = step, view.epoch
        waiting = _waiting_for(progress, request.request_id)
        if waiting and waiting != self.waiting_for and progress is not None and progress.blockers:
            names = ", ".join(f"{b.node_id} {b.why}" for b in progress.blockers)
            lines.append(f"         waiting for {waiting}: {names}")
        self.waiting_for = waiting
        return lines


def follow(client: Client, request_id: str) -> bool:
    """Show a request's progress until it is finished: True when it was done.

    Ctrl-C stops the showing, never the request. Raises CliError.
    """
    out = console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[eta]}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
    try:
        with bar:
            request = _watch(client, request_id, bar)
    except KeyboardInterrupt:
        out.print(
            f"\nRequest {request_id} goes on. Follow it: stele request follow {request_id}; "
            f"undo it: stele cancel {request_id}",
            soft_wrap=True,
        )
        raise
    took = duration((request.finished_at_ms - request.submitted_at_ms) / 1000)
    done = request.status is RequestStatus.DONE
    colour = "green" if done else "yellow" if request.status is RequestStatus.CANCELLED else "red"
    error = f": {escape(request.error)}" if request.error else ""
    out.print(
        f"[{colour}]{request.status}[/{colour}] at epoch {request.finished_epoch} "
        f"after {took}{error}",
        soft_wrap=True,
    )
    return done


def _watch(client: Client, request_id: str, bar: Progress) -> Request:
    task = bar.add_task("", total=None, eta="", visible=False)
    seen = Seen()
    while True:
        view = client.get("metadata-log", "/v1/state", StateView, level="local")
        request = view.request(request_id)
        if request is None:
            if time.monotonic() - seen.began > APPEARS_WITHIN_S:
                raise CliError(
                    f"Request {request_id} is not in the state at epoch {view.epoch}.",
                    "`stele requests` shows them all.",
                )
        else:
            progress = ask(client, "coordinator", "/v1/progress", ProgressAnswer)
            for line in seen.news(view, request, progress):
                bar.console.print(line, markup=False, soft_wrap=True)
            _draw(bar, task, seen.step, progress, request_id)
            if request.status not in UNFINISHED:
                return request
        time.sleep(POLL_S)


def _draw(
    bar: Progress, task: TaskID, step: str, progress: ProgressAnswer | None, request_id: str
) -> None:
    ours = progress is not None and progress.request_id == request_id
    total = progress.bytes_total if progress is not None and ours else 0
    done = progress.bytes_done if progress is not None and ours else 0
    eta = progress.eta_s if progress is not None and ours else None
    bar.update(
        task,
        description=step,
        total=total or None,
        completed=done,
        visible=total > 0,
        eta="" if eta is None else f"{duration(eta)} to go",
    )


def _step_of(view: StateView, request: Request) -> str:
    """What people are told about where a request is: its status, or the step it is in."""
    if view.operation is not None and view.operation.request_id == request.request_id:
        undone = " (being undone)" if view.topology.rollback else ""
        return f"{view.topology.transition_state}{undone}"
    if request.status is RequestStatus.PENDING and view.operation is not None:
        return f"pending behind {view.operation.request_id}"
    return str(request.status)


def _waiting_for(progress: ProgressAnswer | None, request_id: str) -> str:
    if progress is None or progress.request_id != request_id:
        return ""
    return progress.waiting_for or ""
