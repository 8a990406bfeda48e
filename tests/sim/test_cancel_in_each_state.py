"""A cancel, or the replacement of a node that dies, in each state of each operation on nodes.

The end of a story checks that every request ends, and that each acknowledged row is readable.
"""

from pathlib import Path

import pytest

from stele_simulator.processes.stories.player import play_story

pytestmark = pytest.mark.slow

BEGIN = "cluster A@100 B@200 C@300 D@400 rf {rf}\nwait 5\n"
FORWARD = {
    "join X@150": ("join_group0", "commit_cdc_generation", "write_both_read_old", "finishing"),
    "leave A": ("write_both_read_old", "write_both_read_new", "left_token_ring"),
    "move A to 250": ("write_both_read_old", "write_both_read_new", "finishing"),
    "rebuild A": ("rebuilding",),
}
"""The states on the way forward, by request."""
REPLACE = {"replace C by X": ("join_group0", "write_both_read_old", "write_both_read_new")}
REMOVE = {"remove C": ("write_both_read_old", "write_both_read_new", "left_token_ring")}
DEAD = {**REPLACE, **REMOVE}
"""Requests about a dead node, which has all of the only copies at a replication factor of 1."""
CASES = [
    (asked, state, rf)
    for asked, states in FORWARD.items()
    for state in states
    for rf in ("2" if asked.startswith("rebuild") else "12")  # with one copy there is no source
]
DEAD_CASES = [(asked, state) for asked, states in DEAD.items() for state in states]


def _tell(directory: Path, *lines: str, rf: str) -> None:
    story = directory / "story.txt"
    story.write_text(BEGIN.format(rf=rf) + "\n".join(lines) + "\n")
    play_story(story)


@pytest.mark.parametrize(("asked", "state", "rf"), CASES)
def test_operation_is_cancelled(tmp_path: Path, asked: str, state: str, rf: str) -> None:
    name = asked.split()[1].partition("@")[0]
    _tell(tmp_path, asked, f"until {name} in {state}", f"cancel {name}", rf=rf)


@pytest.mark.parametrize(("asked", "state"), DEAD_CASES)
def test_replacement_or_removal_of_a_dead_node_is_cancelled(
    tmp_path: Path, asked: str, state: str
) -> None:
    _tell(tmp_path, "wipe C", asked, f"until C in {state}", "cancel C", rf="2")


@pytest.mark.parametrize(
    ("asked", "state"), [(asked, state) for asked, states in FORWARD.items() for state in states]
)
def test_node_dies_and_is_replaced_during_an_operation(
    tmp_path: Path, asked: str, state: str
) -> None:
    name = asked.split()[1].partition("@")[0]
    lines = (asked, f"until {name} in {state}", "wipe C", "replace C by Y", "until Y is done")
    _tell(tmp_path, *lines, "expect C is left", rf="2")
