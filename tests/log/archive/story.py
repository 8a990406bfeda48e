"""A history of 80 epochs for tests of the archive."""

from stele.domain.commands import SetSetting
from tests.domain.epochs import History
from tests.domain.history import three_nodes

EPOCHS = 80


def long_story(forked: int = 0) -> History:
    """Return 80 epochs: a cluster of three nodes, then settings. Epochs after ``forked`` have other times."""
    made, _ = three_nodes()
    for n in range(EPOCHS - made.image.epoch):
        made.at_ms += made.image.epoch == forked
        assert made.apply(SetSetting(f"s{n % 7}", str(n))) is None
    return made
