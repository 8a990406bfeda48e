"""How long finished requests stay in the state: by the times of the log, and by number."""

import pytest

from stele.domain.commands import Cancel, NoopRequest, SetSetting
from stele.domain.evolve import evolve
from stele.domain.image import Image
from stele.domain.requests.model import RequestForgotten, named
from stele.domain.snapshot import facts_to_image, image_to_facts
from tests.domain.epochs import History
from tests.domain.history import three_nodes

DAY_MS = 86_400_000


class Ending:
    """Requests that end at the times that a test gives."""

    def __init__(self) -> None:
        self.history: History = three_nodes()[0]
        self.began_ms = self.history.at_ms
        self.founders = {*self.image.requests.requests}
        self._number = 0

    @property
    def image(self) -> Image:
        return self.history.image

    def end(self, day: float = 0, *, after_days: float = 0) -> str:
        """A request that ended on a day, and was asked for so many before."""
        self._number += 1
        request_id = named(f"noop-{self._number}")
        self.history.at_ms = self.began_ms + round((day - after_days) * DAY_MS)
        assert self.history.apply(NoopRequest(), request_id) is None
        self.history.at_ms = self.began_ms + round(day * DAY_MS)
        assert self.history.apply(Cancel(request_id)) is None
        return request_id

    def kept(self) -> set[str]:
        return {*self.image.requests.requests} - self.founders

    def set(self, name: str, value: int) -> None:
        assert self.history.apply(SetSetting(name, str(value))) is None


@pytest.fixture
def ending() -> Ending:
    return Ending()


def test_a_finished_request_is_found_by_its_id_for_a_month(ending: Ending) -> None:
    first = ending.end(day=0)
    second = ending.end(day=29.9)
    assert ending.image.request(first) is not None
    third = ending.end(day=30.1)
    assert ending.kept() == {second, third}
    assert not ending.founders & {*ending.image.requests.requests}, "the joins are as old"


def test_what_ended_just_now_stays_however_long_it_had_waited(ending: Ending) -> None:
    waited = ending.end(day=100, after_days=90)
    newest = ending.end(day=100.1)
    assert ending.kept() == {waited, newest}


def test_another_time_counts_from_the_next_end_on(ending: Ending) -> None:
    first, second = ending.end(day=0), ending.end(day=2)
    ending.set("request_history_s", 86_400)
    assert ending.kept() == {first, second}
    third = ending.end(day=2.5)
    assert ending.kept() == {second, third}


def test_the_number_wins_over_the_time_and_takes_the_oldest(ending: Ending) -> None:
    ending.set("finished_requests", 3)
    ended = [ending.end(day=day / 100) for day in range(8)]
    assert ending.kept() == {*ended[-3:]}
    assert len(ending.image.requests.finished()) == 3


def test_a_clock_that_is_slow_makes_nobody_forget_too_early_or_too_late(ending: Ending) -> None:
    """The log's time is that of its state ids, which never go back."""
    first = ending.end(day=20)
    slow = ending.end(day=1)
    rows = ending.image.requests.requests
    assert rows[slow].ended_ms >= rows[first].ended_ms
    later = ending.end(day=49)
    assert ending.kept() == {first, slow, later}


def test_the_image_says_since_when_it_has_all(ending: Ending) -> None:
    before = ending.image
    assert before.requests.forgotten is None
    first = ending.end(day=0)
    row = ending.image.requests.requests[first]
    ending.end(day=31)
    forgotten = ending.image.requests.forgotten
    assert forgotten == RequestForgotten(first, row.finished_epoch, row.ended_ms)
    assert all(r.finished_epoch > row.finished_epoch for r in ending.image.requests.finished())


def test_the_fold_reads_no_clock_and_a_snapshot_has_the_same(ending: Ending) -> None:
    for day in (0, 10, 31, 35, 70):
        ending.end(day=day)
    again = ending.history.images[0]
    for epoch in ending.history.epochs:
        again = evolve(again, epoch)
    assert again == ending.image
    back = facts_to_image(image_to_facts(again), again.epoch, again.state_id)
    assert back.requests == again.requests


def test_open_requests_are_those_that_are_not_finished(ending: Ending) -> None:
    assert ending.history.apply(NoopRequest(), named("open")) is None
    ending.end(day=50)
    assert [r.request_id for r in ending.image.requests.unfinished()] == [named("open")]
    for image in ending.history.images:
        statuses = {i: r.status for i, r in image.requests.requests.items()}
        open_ = {i for i, status in statuses.items() if status in ("pending", "running")}
        assert {*image.requests.open} == open_
