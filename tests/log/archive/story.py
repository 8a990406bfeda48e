"""A log of some length for files of the archive."""

from stele.domain.commands import SetSetting
from tests.domain.epochs import History
from tests.domain.history import three_nodes

EPOCHS = 80


def long_story() -> History:
    """A cluster of three nodes, then settings, up to epoch 80."""
    made, _ = three_nodes()
    for n in range(EPOCHS - made.image.epoch):
        assert made.apply(SetSetting(f"s{n % 7}", str(n))) is None
    return made
