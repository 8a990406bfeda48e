"""A run or a story as an HTML page: a lane for each process, bars for faults, and each line of its trace.

It is one file without scripts. Pointing at an event shows its line, and a click leads to the line below.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from stele_simulator.report import failure_lines, replay_command, result_lines
from stele_simulator.result import Result

LOG: Final = "log"
REQUESTS: Final = "requests"
WORLD: Final = "world"
"""Lane of events without a process: leader, Redis, topic."""

_LINE: Final = re.compile(r"\s*(\d+\.\d+) (.*)")
_PROCESS: Final = re.compile(r"\b(?:(?!(?:k|r|dc)\d)[a-z]{1,2}\d+|(?!I\b)[A-Z])\b")
"""Nodes of stories have a letter as their name."""
_LASTS: Final = re.compile(r"\bfor ([\d.]+) s\b")
_KINDS: Final = {
    "epoch": re.compile(r"epoch \d+ "),
    "asked": re.compile(r"ask |[0-9a-f]{8}\S* "),
    "fault": re.compile(
        r"\b(cut|cuts|pause|kill|killed|crash|crashes|power|slow|stands still|is away|flushed|wipe|wiped|lost"
        r"|loses|dies|full|torn|flip|damaged|gone|behind|takes over|made anew|deaf|for want of)\b"
    ),
    "life": re.compile(
        r"\b(start|starts|restart|restarts|heal|heals|ends|is back|recovers|recovered|upgraded|rolled back)\b"
    ),
}
"""By the first that fits; all else is what somebody says."""

PIXELS_A_SECOND: Final = 14.0
MOST_PIXELS: Final = 60_000.0
LANE: Final = 26
DOT: Final = 4.0
LEFT: Final = 12.0


class Event(NamedTuple):
    """Line ``number`` of a trace: time, lanes, kind and duration."""

    number: int
    at_s: float
    text: str
    lanes: tuple[str, ...]
    kind: str
    lasts_s: float


def events_of(trace: Iterable[str]) -> list[Event]:
    """Parse a trace. Lines without a time belong to the previous event, and are left out."""
    found = list[Event]()
    for number, line in enumerate(trace):
        match = _LINE.match(line)
        if match is None:
            continue
        text = match[2]
        kind = next((name for name, words in _KINDS.items() if words.search(text)), "said")
        lasts = _LASTS.search(text) if kind == "fault" else None
        lasts_s = 0.0 if lasts is None else float(lasts[1])
        found.append(Event(number, float(match[1]), text, _lanes(text, kind), kind, lasts_s))
    return found


class Head(NamedTuple):
    """Header above the lanes. ``failed_s`` is the time of the failed rule; negative if none failed."""

    title: str
    verdict: str
    """As HTML."""
    again: str
    """The command that plays it again."""
    figures: Sequence[str]
    end_s: float
    failed_s: float = -1.0


def time_line(trace: Sequence[str], result: Result) -> str:
    """The page of a run, as HTML."""
    failure = result.failure
    lines = result_lines(result)[1:]
    if failure is None:
        head = Head(
            f"seed {result.seed}", "passed", replay_command(result), lines, result.virtual_s
        )
    else:
        head = Head(
            f"seed {result.seed}",
            f'<b class="fault">{escape(failure.invariant)} fails</b>',
            replay_command(result),
            [*failure_lines(failure), "", *lines],
            result.virtual_s,
            failure.at_s,
        )
    return _page(trace, head)


def story_line(trace: Sequence[str], path: Path, why: str) -> str:
    """The page of a story, as HTML; ``why`` it did not go as it is written, empty where it did."""
    end_s = max((event.at_s for event in events_of(trace)), default=0.0)
    verdict = '<b class="fault">did not go as it is written</b>' if why else "went as it is written"
    again = f"stele sim run --scenario {path} --html"
    told = [*([why, ""] if why else []), *path.read_text().splitlines()]
    return _page(trace, Head(path.stem, verdict, again, told, end_s, end_s if why else -1.0))


def _page(trace: Sequence[str], head: Head) -> str:
    events = events_of(trace)
    lanes = _in_order({lane for event in events for lane in event.lanes})
    title = escape(head.title)
    return "\n".join(
        (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
            f"<style>:root {{ --lane: {LANE}px; }}{_STYLE}</style><h1>{title}: {head.verdict}</h1>",
            f"<p>Again: <code>{escape(head.again)}</code></p>",
            f"<pre>{escape(chr(10).join(head.figures))}</pre>",
            *_drawn(events, lanes, head),
            "<h2>Line by line</h2><ol>",
            *(_row(event) for event in events),
            "</ol></html>",
        )
    )


def _lanes(text: str, kind: str) -> tuple[str, ...]:
    if kind == "epoch":
        return (LOG,)
    if kind == "asked":
        return (REQUESTS,)
    named = tuple(dict.fromkeys(_PROCESS.findall(text)))
    if not named:
        return (WORLD,)
    return named if kind == "fault" else named[:1]


def _in_order(lanes: set[str]) -> list[str]:
    first = [lane for lane in (LOG, REQUESTS, WORLD) if lane in lanes]

    def place(lane: str) -> tuple[str, int]:
        letters = lane.rstrip("0123456789")
        return letters, int(lane[len(letters) :] or 0)

    return first + sorted(lanes - {LOG, REQUESTS, WORLD}, key=place)


def _drawn(events: Sequence[Event], lanes: Sequence[str], head: Head) -> Iterator[str]:
    end_s = max([head.end_s, *(event.at_s for event in events)])
    scale = min(PIXELS_A_SECOND, MOST_PIXELS / max(1.0, end_s))
    width, height = LEFT + end_s * scale + 40, LANE * (len(lanes) + 1)
    place = {lane: LANE * (index + 1) + LANE / 2 for index, lane in enumerate(lanes)}
    yield '<div class="map"><div class="names">'
    yield from (f"<div>{escape(lane)}</div>" for lane in ("", *lanes))
    yield '</div><div class="lanes" tabindex="0">'
    yield f'<svg width="{width:.0f}" height="{height}" role="img" aria-label="what happened when">'
    every_s = next((s for s in (5, 10, 30, 60, 300, 1800) if s * scale >= 60), 7200)
    for second in range(0, int(end_s) + 1, every_s):
        x = LEFT + second * scale
        yield f'<path class="tick" d="M{x:.1f} 18V{height}"/><text x="{x:.1f}" y="13">{second} s</text>'
    for event in events:
        x = LEFT + event.at_s * scale
        mark = "".join(_mark(event, x, place[lane], scale, end_s) for lane in event.lanes)
        yield f'<a href="#e{event.number}" class="{event.kind}">{mark}<title>{_told(event)}</title></a>'
    if head.failed_s >= 0:
        x = LEFT + head.failed_s * scale
        yield f'<path class="failed" d="M{x:.1f} 0V{height}"/>'
    yield "</svg></div></div>"
    yield f"<p>{''.join(f'<span class={kind}>● {says}</span> ' for kind, says in _LEGEND.items())}</p>"


def _mark(event: Event, x: float, y: float, scale: float, end_s: float) -> str:
    if not event.lasts_s:
        return f'<circle cx="{x:.1f}" cy="{y}" r="{DOT}"/>'
    wide = max(2 * DOT, (min(end_s, event.at_s + event.lasts_s) - event.at_s) * scale)
    return f'<rect x="{x:.1f}" y="{y - DOT}" width="{wide:.1f}" height="{2 * DOT}" rx="3"/>'


def _row(event: Event) -> str:
    return f'<li id="e{event.number}" class="{event.kind}"><code>{_told(event)}</code></li>'


def _told(event: Event) -> str:
    return escape(f"{event.at_s:.3f} s  {event.text}")


_LEGEND: Final = {
    "epoch": "an epoch of the log",
    "asked": "a request or its answer",
    "fault": "a fault, as long as it holds",
    "life": "a start, an end, or the end of a fault",
    "said": "what somebody said or did",
}
_STYLE: Final = """
:root {
  color-scheme: light dark;
  --epoch: #2f6fdb; --asked: #8a4fd0; --fault: #d0342c; --life: #23893f; --said: #80868f;
}
body { font: 14px/1.45 system-ui, sans-serif; margin: 20px; }
pre { overflow: auto; }
.map { display: flex; border: 1px solid #8886; border-radius: 6px; }
.lanes { overflow-x: auto; flex: 1; }
.names div { height: var(--lane); line-height: var(--lane); padding: 0 10px; font-weight: 600; }
svg { display: block; }
svg text { font-size: 11px; fill: currentColor; opacity: .7; }
.tick { stroke: #8885; }
.failed { stroke: var(--fault); stroke-width: 2; }
rect { fill-opacity: .45; }
a:hover { stroke: currentColor; stroke-width: 2; }
.epoch { fill: var(--epoch); }
.asked { fill: var(--asked); }
.fault { fill: var(--fault); }
.life { fill: var(--life); }
.said { fill: var(--said); }
span.epoch, li.epoch { color: var(--epoch); }
span.asked, li.asked { color: var(--asked); }
span.fault, li.fault, b.fault { color: var(--fault); }
span.life, li.life { color: var(--life); }
span.said { color: var(--said); }
span { margin-right: 14px; }
ol { padding-left: 4em; }
li:target { outline: 2px solid currentColor; border-radius: 3px; }
code { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
