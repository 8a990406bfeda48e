"""The job's position is announced rarely: an announcement is an epoch of the log itself."""

from stele.placements.reading import EVERY_EPOCHS, to_tell


def test_position_is_announced_at_first_and_after_many_epochs() -> None:
    assert to_tell({"one": 0, "two": 7}, {}) == {"two": 7}
    assert to_tell({"two": 6 + EVERY_EPOCHS}, {"two": 7}) == {}
    assert to_tell({"two": 7 + EVERY_EPOCHS}, {"two": 7}) == {"two": 7 + EVERY_EPOCHS}
    assert to_tell({"two": 1}, {"two": 1 + EVERY_EPOCHS}) == {"two": 1}, "its tables were lost"
