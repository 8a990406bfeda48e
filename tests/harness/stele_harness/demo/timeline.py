"""The demo's voice: steps with their durations, notes with a time, progress, checks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from stele.cli.output import duration
from stele_harness.demo.checks import Check, Report, StepTime
from stele_harness.demo.words import PROVES


class Timeline:
    """Prints as things happen, and notes them in the report."""

    def __init__(self, out: Console, report: Report) -> None:
        self.out = out
        self.report = report
        self._began = time.monotonic()
        self._steps = 0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered heading, and how long the block took."""
        self._steps += 1
        began = time.monotonic()
        self.out.print(f"\n[bold]{self._steps:>2}  {escape(title)}[/bold]")
        yield
        took_s = time.monotonic() - began
        self.report.steps.append(StepTime(title, round(took_s, 2)))
        self.out.print(f"[dim]    {self._clock()}  took {duration(took_s)}[/dim]")

    def note(self, text: str, style: str = "") -> None:
        """One line with the time since the demo began."""
        line = f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
        self.out.print(f"    [dim]{self._clock()}[/dim]  {line}", soft_wrap=True)

    def explain(self, text: str) -> None:
        """What a word means that is about to be used."""
        self.out.print(f"    [italic]{escape(text)}[/italic]", soft_wrap=True)

    def check(self, name: str, held: bool, detail: str) -> None:
        """One claim of the report."""
        self.report.checks.append(Check(name, held, detail))
        mark = "[green]held[/green]  " if held else "[bold red]BROKEN[/bold red]"
        self.out.print(f"    {mark}  {escape(name)}: {escape(detail)}", soft_wrap=True)
        if held and (proves := PROVES.get(name)):
            self.out.print(f"            [dim]so: {escape(proves)}[/dim]", soft_wrap=True)

    def figure(self, name: str, value: float | int | str) -> None:
        """A number of the report."""
        self.report.figures[name] = round(value, 3) if isinstance(value, float) else value

    @contextmanager
    def progress(self, description: str, total_bytes: int | None) -> Iterator[Bar]:
        """A bar in bytes; it vanishes at the end, and is not drawn where there is no terminal."""
        progress = Progress(
            TextColumn("              {task.description}"),
            BarColumn(bar_width=36),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[more]}"),
            console=self.out,
            transient=True,
            disable=not self.out.is_terminal,
        )
        with progress:
            yield Bar(progress, progress.add_task(description, total=total_bytes, more=""))

    def _clock(self) -> str:
        minutes, seconds = divmod(self.elapsed_s(), 60)
        return f"{int(minutes)}:{seconds:04.1f}"


class Bar:
    """One bar of a timeline."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def show(
        self, done_bytes: int, total_bytes: int | None, description: str, more: str = ""
    ) -> None:
        self._progress.update(
            self._task,
            completed=done_bytes,
            total=total_bytes or None,
            description=description,
            more=more,
        )
