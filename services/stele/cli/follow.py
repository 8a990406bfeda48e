"""Follow a request until it is finished: its steps, bytes, epochs and an estimate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from rich.markup import escape

from stele.cli.client import Client, ask, is_known
from stele.cli.errors import CliError
from stele.cli.history import RequestHistory
from stele.cli.output import console, duration, print_line
from stele.cli.reading import StateReading, read_epochs
from stele.domain.model.requests import Request
from stele.domain.model.topology import TransitionSummary
from stele.domain.names import UNFINISHED, ReportStatus, RequestStatus, WaitKind
from stele.runtime.answers import coordinator as answers
from stele.runtime.answers.metadata_log import RequestAnswer
from stele.words.explain import NO_COORDINATOR, after_failure, moved_line, waiting_line
from stele.words.facts import EpochRow

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

POLL_S = 0.25
PATIENT_S = 2.0
"""Time after which a wait is shown. A command of the coordinator reaches the log much sooner."""
APPEARS_WITHIN_S = 30.0
"""Limit until a request must appear. An accepted request is in the state at once, but an instance
that restarts may lag."""
MOVED_EVERY_S = 10.0
"""Interval of lines about streamed bytes where no bar can be drawn, such as in a file."""
UNKNOWN = "unknown_request"
MOST_EPOCHS = 1000
"""Limit of epochs that are searched for steps. For an older request only later steps are shown."""


@dataclass(slots=True)
class FollowedOutput:
    """The output of a follower so far."""

    history: RequestHistory
    step: str = ""
    waiting: str = ""
    moved_at_s: float = 0.0
    moved_told: tuple[str, int] = ("", 0)
    """The session and its bytes that were printed last."""
    epoch: int = 0
    asked_ms: int = 0
    found_at_s: float = 0.0
    knows_coordinator: bool = False
    """True if an address of a coordinator is known."""
    alone_since_s: float | None = None
    """Time since the start at which the coordinator stopped answering; None if it answers."""
    began: float = field(default_factory=time.monotonic)

    def begins_at(self, answer: RequestAnswer) -> int:
        """Return the first epoch that was not searched yet."""
        first = self.epoch + 1 if self.epoch else answer.request.submitted_epoch
        return first if answer.epoch - first < MOST_EPOCHS else answer.epoch + 1

    def news(
        self, answer: RequestAnswer, rows: list[EpochRow], progress: answers.Progress | None
    ) -> list[str]:
        """Return the lines about changes since the last poll.

        They are the steps, by the log's epochs and times where known, and the current wait.
        """
        lines: list[str] = []
        self.asked_ms = answer.request.submitted_at_ms
        for row in rows:
            lines += self.steps(row)
        step = step_of(answer.request, answer.transition)
        if step != self.step:
            lines.append(_line(self.passed_s(), answer.epoch, step))
            self.step = step
        self.epoch = max(self.epoch, answer.epoch)
        unfinished = answer.request.status in UNFINISHED
        if progress is None and unfinished and self.knows_coordinator:
            return lines + self.alone()
        self.alone_since_s = None
        wait = None if progress is None else progress.wait_of(answer.request.request_id)
        waiting = "" if wait is None else f"{wait.waiting_for} {wait.cause}"
        if wait is not None and unfinished and is_worth_a_line(wait) and waiting != self.waiting:
            lines.append(f"         {waiting_line(wait)}")
            self.waiting = waiting
        return lines

    def alone(self) -> list[str]:
        """Return a line that no coordinator answers, after it has not for ``PATIENT_S``."""
        if self.alone_since_s is None:
            self.alone_since_s = self.passed_s()
        if self.waiting == NO_COORDINATOR or self.passed_s() - self.alone_since_s < PATIENT_S:
            return []
        self.waiting = NO_COORDINATOR
        return [f"         {NO_COORDINATOR}"]

    def steps(self, row: EpochRow) -> list[str]:
        """Return the line of an epoch that starts another step."""
        step = self.history.step(row)
        if not step or step == self.step:
            return []
        self.step = step
        return [_line((row.at_ms - self.asked_ms) / 1000, row.epoch, step)]

    def moved(self, work: answers.TransitionProgress | None) -> list[str]:
        """Return a line with the bytes streamed and the time left.

        It is printed at the start, every ``MOVED_EVERY_S``, and at the end.
        """
        if work is None or not (work.bytes_done or work.bytes_total):
            return []
        if (work.session, work.bytes_done) == self.moved_told:
            return []
        session, _ = self.moved_told
        all_there = all(node.status == ReportStatus.SUCCESS for node in work.nodes.values())
        is_soon = self.passed_s() - self.moved_at_s < MOVED_EVERY_S
        if session == work.session and is_soon and not all_there:
            return []
        self.moved_at_s, self.moved_told = self.passed_s(), (work.session, work.bytes_done)
        return [f"         {moved_line(work)}"]

    def passed_s(self) -> float:
        return time.monotonic() - self.began


def _line(passed_s: float, epoch: int, step: str) -> str:
    return f"{passed_s:5.1f} s  epoch {epoch:>4}  {step}"


def is_worth_a_line(wait: answers.WaitProgress) -> bool:
    """Return False for waits that end in a moment: short ones for the log, or under two polls."""
    if wait.kind is WaitKind.LOG:
        return (wait.waited_s or 0.0) > PATIENT_S
    return wait.waited_s is None or wait.waited_s > 2 * POLL_S


def step_of(request: Request, transition: TransitionSummary | None) -> str:
    """Return the status of a request, or the state of the transition that carries it out."""
    if transition is None:
        return str(request.status)
    return f"{transition.state}{' (being undone)' if transition.mark else ''}"


def follow(client: Client, request_id: str) -> bool:
    """Show a request's progress until it is finished. Return True when it was done.

    Ctrl-C stops the output, never the request. Raises CliError.
    """
    return (
        _follow(client, request_id, FollowedOutput(RequestHistory(request_id))).status
        is RequestStatus.DONE
    )


def follow_on(client: Client, request: Request, epoch: int) -> Request:
    """Follow a request that existed before ``epoch``. Return its final row.

    The request may have left the state with that epoch.
    """
    history = RequestHistory(request.request_id)
    first = max(request.started_epoch, epoch - MOST_EPOCHS)
    for row in _read(client, first, epoch - 1) if request.started_epoch else ():
        history.step(row)
    ago_s = max(0.0, time.time() - request.submitted_at_ms / 1000)
    seen = FollowedOutput(
        history, epoch=epoch - 1, asked_ms=request.submitted_at_ms, found_at_s=ago_s
    )
    seen.began -= ago_s
    return _follow(client, request.request_id, seen)


def _follow(client: Client, request_id: str, seen: FollowedOutput) -> Request:
    from stele.cli.progress import bytes_bar  # noqa: PLC0415  (a tenth of a look's time)

    out = console()
    bar = bytes_bar(out)
    try:
        with bar:
            request = _watch(client, request_id, bar, seen)
    except KeyboardInterrupt:
        print_line(
            f"\nRequest {request_id} continues. Follow it: stele request follow {request_id}; "
            f"undo it: stele cancel {request_id}",
            out,
        )
        raise
    took = duration((request.finished_at_ms - request.submitted_at_ms) / 1000)
    done = request.status is RequestStatus.DONE
    colour = "green" if done else "yellow" if request.status is RequestStatus.CANCELLED else "red"
    error = f": {escape(request.error)}" if request.error else ""
    out.print(
        f"[{colour}]{request.status}[/{colour}] at epoch {request.finished_epoch}, {took} after it "
        f"was asked for{error}",
        soft_wrap=True,
    )
    if request.status is RequestStatus.FAILED:
        print_line(f"do: {escape(after_failure(request))}", out)
    return request


def _watch(client: Client, request_id: str, bar: Progress, seen: FollowedOutput) -> Request:
    task = bar.add_task("", total=None, eta="", visible=False)
    seen.knows_coordinator = is_known(client, "coordinator")
    while True:
        answer = _look(client, request_id, seen)
        if answer is None and seen.epoch:
            lines, request = _ended(client, request_id, seen)
            for line in lines:
                print_line(line, bar.console)
            if request is not None:
                return request
        if answer is not None:
            progress = ask(client, "coordinator", "/v1/progress", answers.Progress)
            work = None if progress is None else progress.of_request(request_id)
            lines = seen.news(answer, _epochs(client, seen, answer), progress)
            if not bar.console.is_terminal:
                lines += seen.moved(work)
            for line in lines:
                print_line(line, bar.console)
            _draw(bar, task, seen.step, work)
            if answer.request.status not in UNFINISHED:
                return answer.request
        time.sleep(POLL_S)


def _look(client: Client, request_id: str, seen: FollowedOutput) -> RequestAnswer | None:
    """Return the request, or None while an instance that lags does not have it yet."""
    try:
        answer = StateReading(client, level="local").request(request_id)
    except CliError as error:
        if error.code != UNKNOWN or seen.passed_s() - seen.found_at_s > APPEARS_WITHIN_S:
            raise
        return None
    seen.found_at_s = seen.passed_s()
    return answer


def _ended(
    client: Client, request_id: str, seen: FollowedOutput
) -> tuple[list[str], Request | None]:
    """Return the last steps and the final row of a request that left the state, from the log.

    Requests of the balancer are forgotten as soon as they end. None: the log has no end of it.
    """
    lines = list[str]()
    for row in read_epochs(client, seen.epoch + 1, MOST_EPOCHS, list[EpochRow]):
        lines += seen.steps(row)
        for fact in row.facts:
            if fact.get("type") == "RequestChanged" and fact["request"]["request_id"] == request_id:
                found = msgspec.convert(fact["request"], Request)
                if found.status not in UNFINISHED:
                    return lines, found
    return lines, None


def _epochs(client: Client, seen: FollowedOutput, answer: RequestAnswer) -> list[EpochRow]:
    """Return the unsearched epochs up to the answer's; none where they are not available."""
    return _read(client, seen.begins_at(answer), answer.epoch)


def _read(client: Client, first: int, last: int) -> list[EpochRow]:
    """Return the epochs, or an empty list where they are not available."""
    if first > last:
        return []
    try:
        return read_epochs(client, first, last - first + 1, list[EpochRow])
    except CliError:
        return []


def _draw(
    bar: Progress, task: TaskID, step: str, progress: answers.TransitionProgress | None
) -> None:
    total = 0 if progress is None else progress.bytes_total
    eta = None if progress is None else progress.eta_s
    bar.update(
        task,
        description=step,
        total=total or None,
        completed=0 if progress is None else progress.bytes_done,
        visible=total > 0,
        eta="" if eta is None else f"{duration(eta)} to go",
    )
