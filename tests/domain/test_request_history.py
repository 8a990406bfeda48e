"""Retention of finished requests in the state: by the times of the log, and by number."""

import pytest

from stele.domain.commands import Cancel, NoopRequest, SetSetting
from stele.domain.evolve import evolve
from stele.domain.image import Image
from stele.domain.model.requests import RequestForgotten, named
from stele.domain.snapshot import facts_to_image, image_to_facts
from tests.domain.epochs import History
from tests.domain.history import three_nodes

DAY_MS = 86_400_000


class FinishedRequests:
    """Requests that end at given times."""

    def __init__(self) -> None:
        self.history: History = three_nodes()[0]
        self.began_ms = self.history.at_ms
        self.founders = {*self.image.requests.requests}
        self._number = 0

    @property
    def image(self) -> Image:
        return self.history.image

    def end(self, day: float = 0, *, after_days: float = 0) -> str:
        """Return a request that ended on a day, submitted ``after_days`` before."""
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
def finished() -> FinishedRequests:
    return FinishedRequests()


def test_finished_request_is_kept_for_a_month(finished: FinishedRequests) -> None:
    first = finished.end(day=0)
    second = finished.end(day=29.9)
    assert finished.image.request(first) is not None
    third = finished.end(day=30.1)
    assert finished.kept() == {second, third}
    assert not finished.founders & {*finished.image.requests.requests}, "the joins are as old"


def test_retention_counts_from_the_end_of_a_request(finished: FinishedRequests) -> None:
    waited = finished.end(day=100, after_days=90)
    newest = finished.end(day=100.1)
    assert finished.kept() == {waited, newest}


def test_new_retention_applies_from_the_next_end(finished: FinishedRequests) -> None:
    first, second = finished.end(day=0), finished.end(day=2)
    finished.set("request_history_s", 86_400)
    assert finished.kept() == {first, second}
    third = finished.end(day=2.5)
    assert finished.kept() == {second, third}


def test_number_limit_takes_precedence_and_removes_the_oldest(finished: FinishedRequests) -> None:
    finished.set("finished_requests", 3)
    ended = [finished.end(day=day / 100) for day in range(8)]
    assert finished.kept() == {*ended[-3:]}
    assert len(finished.image.requests.finished()) == 3


def test_slow_clock_does_not_change_the_retention(finished: FinishedRequests) -> None:
    """The log's time is that of its state ids, which never decrease."""
    first = finished.end(day=20)
    slow = finished.end(day=1)
    rows = finished.image.requests.requests
    assert rows[slow].ended_ms >= rows[first].ended_ms
    later = finished.end(day=49)
    assert finished.kept() == {first, slow, later}


def test_image_records_the_newest_forgotten_request(finished: FinishedRequests) -> None:
    before = finished.image
    assert before.requests.forgotten is None
    first = finished.end(day=0)
    row = finished.image.requests.requests[first]
    finished.end(day=31)
    forgotten = finished.image.requests.forgotten
    assert forgotten == RequestForgotten(first, row.finished_epoch, row.ended_ms)
    assert all(r.finished_epoch > row.finished_epoch for r in finished.image.requests.finished())


def test_retention_is_the_same_in_a_replay_and_a_snapshot(finished: FinishedRequests) -> None:
    for day in (0, 10, 31, 35, 70):
        finished.end(day=day)
    again = finished.history.images[0]
    for epoch in finished.history.epochs:
        again = evolve(again, epoch)
    assert again == finished.image
    back = facts_to_image(image_to_facts(again), again.epoch, again.state_id)
    assert back.requests == again.requests


def test_open_requests_are_those_that_are_not_finished(finished: FinishedRequests) -> None:
    assert finished.history.apply(NoopRequest(), named("open")) is None
    finished.end(day=50)
    assert [r.request_id for r in finished.image.requests.unfinished()] == [named("open")]
    for image in finished.history.images:
        statuses = {i: r.status for i, r in image.requests.requests.items()}
        open_ = {i for i, status in statuses.items() if status in ("pending", "running")}
        assert {*image.requests.unfinished_by_id} == open_
