"""Times without samples do not count."""

from __future__ import annotations

from stele.log.clocks import Lasting


def test_duration_excludes_times_without_samples() -> None:
    lasting = Lasting(2.0)
    assert [lasting.seen(now_s) for now_s in (10.0, 10.5, 12.0)] == [0.0, 0.5, 2.0]
    assert lasting.seen(3600.0) == 4.0, "nobody looked for an hour"
    lasting.over()
    assert [lasting.seen(now_s) for now_s in (4000.0, 4001.0)] == [0.0, 1.0]
