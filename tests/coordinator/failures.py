"""docs/failures.md as data: what becomes of each operation in each of its states when something fails."""

from pathlib import Path
from typing import Final, NamedTuple

from stele.domain.names import RequestKind, TransitionState

PAGE: Final = Path(__file__).parents[2] / "docs" / "failures.md"
HEAD: Final = (
    "operation", "state", "no quorum", "a stream fails", "a receiver dies", "cancel", "story",
    "planted bug",
)  # fmt: skip
UNDONE: Final = "undone"
WAITS: Final = "waits"
FORWARD: Final = "forward"
REFUSED: Final = "refused"
NEVER: Final = "-"


class Row(NamedTuple):
    """One operation in one state: what each failure leads to, and what shows that it is noticed."""

    kind: RequestKind
    state: TransitionState
    no_quorum: str
    stream_fails: str
    receiver_dies: str
    cancel: str
    stories: tuple[str, ...]
    mutants: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.state}"


def rows() -> list[Row]:
    """The rows of the page's table. Raises AssertionError when it has another head."""
    lines = [_cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    begins = lines.index(HEAD)
    found = list[Row]()
    for cells in lines[begins + 2 :]:
        if len(cells) != len(HEAD):
            break
        kind, state, no_quorum, stream_fails, receiver_dies, cancel, stories, mutants = cells
        found.append(
            Row(
                RequestKind(kind.strip("`")),
                TransitionState(state.strip("`")),
                no_quorum,
                stream_fails,
                receiver_dies,
                cancel,
                _names(stories),
                _names(mutants),
            )
        )
    return found


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text.split(","))
