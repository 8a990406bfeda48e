"""Ranges that are rolled back must not move reads forward."""

from itertools import pairwise

import msgspec

from stele.domain.image import Image
from stele_simulator.invariants import check_goes_back
from stele_simulator.violation import Violation
from tests.domain.history import join, three_nodes

replace = msgspec.structs.replace


def _steps() -> list[tuple[Image, Image]]:
    """Return the steps of a join of a fourth node to three, epoch by epoch."""
    history, world = three_nodes()
    history.apply(join(4))
    world.run()
    images = world.images
    return [*pairwise(images)]


def _marked(image: Image) -> Image:
    """Return the image as if its open transitions were being rolled back."""
    topology = image.topology
    transitions = topology.transitions
    for name, each in transitions.items():
        transitions = transitions.set(name, replace(each, mark="Rolled back"))
    return replace(image, topology=replace(topology, transitions=transitions))


def _is_refused(before: Image, after: Image) -> bool:
    try:
        check_goes_back(_marked(before), after)
    except Violation as violation:
        assert violation.invariant == "I11"
        return True
    return False


def test_step_that_moves_reads_of_a_marked_transition_is_found() -> None:
    steps = _steps()
    for before, after in steps:
        check_goes_back(before, after)
    ((before, after),) = (step for step in steps if _is_refused(*step))
    assert [t.state for t in before.topology.open()] == ["write_both_read_old"]
    assert [t.state for t in after.topology.open()] == ["write_both_read_new"]
    check_goes_back(_marked(after), before)
