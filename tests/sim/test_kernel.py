"""Virtual time: order, pauses, crashes."""

from stele_simulator.kernel import Clock, Future, Kernel, Owner, Task, us


def test_events_run_in_order_of_time_and_then_of_creation() -> None:
    kernel, seen = Kernel("seed"), list[str]()
    kernel.at(20, None, seen.append, "c")
    kernel.at(10, None, seen.append, "a")
    kernel.at(10, None, seen.append, "b")
    kernel.run_until(30)
    assert seen == ["a", "b", "c"]


def test_paused_process_runs_events_later_and_in_order() -> None:
    kernel, owner, seen = Kernel("seed"), Owner("p"), list[str]()
    owner.paused_until_us = 50
    kernel.at(10, owner, seen.append, "a")
    kernel.at(20, owner, seen.append, "b")
    kernel.at(30, None, setattr, owner, "paused_until_us", 80)
    kernel.at(60, owner, seen.append, "c")
    kernel.run_until(79)
    assert seen == []
    kernel.run_until(100)
    assert seen == ["a", "b", "c"]


def test_crash_drops_timers_but_mail_reaches_the_next_incarnation() -> None:
    kernel, owner, seen = Kernel("seed"), Owner("p"), list[str]()
    kernel.at(10, owner, seen.append, "timer")
    kernel.deliver(10, owner, seen.append, "mail")
    owner.incarnation += 2
    kernel.run_until(20)
    assert seen == ["mail"]


def test_task_of_a_crashed_process_never_continues() -> None:
    kernel, owner, seen = Kernel("seed"), Owner("p"), list[str]()
    future = Future[str]()

    async def body() -> None:
        seen.append(await future.wait())

    Task(owner, body())
    owner.incarnation += 1
    future.set("too late")
    assert seen == []
    assert kernel.now_us == 0


def test_clocks_drift_and_skew_independently() -> None:
    kernel = Kernel("seed")
    kernel.run_until(us(100))
    assert Clock(kernel, drift_ppm=1000).monotonic_s() == 100.1
    assert Clock(kernel, skew_ms=-500).wall_ms() == Clock(kernel).wall_ms() - 500
