"""The hub shares one stream with all pages: in order, each event once, with bounded memory."""

from __future__ import annotations

from stele.console.watch import KEPT, Hub


def test_events_after_an_epoch_are_returned_in_order() -> None:
    hub = Hub()
    for epoch in range(5, 10):
        hub.add(epoch, b"%d" % epoch)
    assert hub.after(6) == [(7, b"7"), (8, b"8"), (9, b"9")]
    assert hub.after(4, most=2) == [(5, b"5"), (6, b"6")]
    assert hub.after(9) == []


def test_events_are_not_returned_across_a_gap() -> None:
    hub = Hub()
    for epoch in range(1, KEPT + 11):
        hub.add(epoch, b"")
    assert (hub.oldest, hub.newest) == (11, KEPT + 10)
    assert hub.after(9) == []
    assert [n for n, _ in hub.after(10, most=1)] == [11]


def test_bell_rings_for_all_earlier_waiters() -> None:
    hub = Hub()
    first = hub.bell()
    hub.add(1, b"")
    assert first.is_set()
    assert not hub.bell().is_set()


def test_restart_clears_events_and_counts_the_history() -> None:
    hub = Hub()
    hub.add(1, b"")
    bell = hub.bell()
    hub.restart()
    assert (hub.newest, hub.history) == (0, 1)
    assert bell.is_set()
    hub.add(7, b"")  # any epoch may follow
