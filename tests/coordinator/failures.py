"""docs/concepts/failure_modes.md as data: the result of each failure in each state of each operation."""

from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from stele.domain.names import RequestKind, TransitionState

PAGE: Final = Path(__file__).parents[2] / "docs" / "concepts" / "failure_modes.md"
HEAD: Final = (
    "operation", "state", "no quorum", "a stream fails", "a receiver dies", "cancel", "story",
    "planted bug",
)  # fmt: skip
CELLS_HEAD: Final = ("where", "what fails", "what becomes of it", "story", "found when planted")
UNDONE: Final = "undone"
WAITS: Final = "waits"
WAITS_LATER: Final = "waits later"
THEN_UNDONE: Final = ", then undone"
WHEN_EXCLUDED: Final = ", excluded: "
FORWARD: Final = "forward"
REFUSED: Final = "refused"
NEVER: Final = "-"


class Row(NamedTuple):
    """One operation in one state: the result of each failure, and what covers it."""

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


class Cell(NamedTuple):
    """A failure that ScyllaDB's topology coordinator handles, and what covers it here."""

    where: str
    fails: str
    stories: tuple[str, ...]
    mutants: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.where}: {self.fails}"


def cells_of_the_reference() -> list[Cell]:
    """Return the rows of the page's second table."""
    return [
        Cell(where, fails, _names(stories), _names(mutants))
        for where, fails, _, stories, mutants in _table(CELLS_HEAD)
    ]


def rows() -> list[Row]:
    """Return the rows of the page's first table."""
    found = list[Row]()
    for cells in _table(HEAD):
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


def _table(head: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the rows under a header. Raise ValueError if the page has no such table."""
    lines = [_cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = lines[lines.index(head) + 2 :]
    return [*takewhile(lambda row: len(row) == len(head), rows)]


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text.split(",") if name.strip() != NEVER)
