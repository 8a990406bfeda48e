"""Failed deliveries are counted, logged and shown, as is a clock that differs from the brokers'."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError

from stele.log import flows
from stele.log.brokers import Brokers
from stele.log.deliveries import MAX_CLOCK_OFFSET_S, Deliveries

ACKS = "stele.demo.acks"


class Report:
    """A delivery report's message: appended at this time by the broker's clock."""

    def __init__(self, appended_s: float = 0.0, kind: int = TIMESTAMP_LOG_APPEND_TIME) -> None:
        self._timestamp = (kind, int(appended_s * 1000))

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def latency(self) -> float:
        return 0.01


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> Deliveries:
    found = Deliveries()
    monkeypatch.setattr(flows, "DELIVERIES", found)
    return found


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ],
)
def test_failed_delivery_is_counted_logged_once_a_minute_and_shown(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    writer: Any = flows.FlowWriter(Brokers("127.0.0.1:1"), ACKS)
    error = KafkaError(code)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            writer._on_delivery(error, Report())
    assert deliveries.counts() == {(ACKS, error.name()): 3}
    (line,) = [each for each in caplog.messages if ACKS in each]
    assert error.name() in line and error.str() in line
    assert f"3 records of {ACKS} were not delivered: {error.name()}" in deliveries.trouble()


def test_a_rejected_timestamp_names_the_clock(deliveries: Deliveries) -> None:
    deliveries.fail(ACKS, KafkaError(KafkaError.INVALID_TIMESTAMP))
    assert "The clock of this machine shows" in deliveries.trouble()


@pytest.mark.parametrize(("offset_s", "where"), [(60.0, "60 s ahead of"), (-60.0, "60 s behind")])
def test_clock_offset_beyond_the_bound_is_named(
    deliveries: Deliveries, offset_s: float, where: str
) -> None:
    deliveries.measure_clock(Report(time.time() - offset_s))  # type: ignore[arg-type]
    assert f"the clock of this machine is {where} the brokers' clock" in deliveries.trouble()
    deliveries.measure_clock(Report(time.time() - MAX_CLOCK_OFFSET_S / 2))  # type: ignore[arg-type]
    assert deliveries.trouble() == ""


def test_late_delivery_report_does_not_measure_the_clock(
    deliveries: Deliveries,
) -> None:
    writer: Any = flows.FlowWriter(Brokers("127.0.0.1:1"), ACKS)
    writer._polled_s -= 60
    writer._on_delivery(None, Report(time.time() - 60))
    assert deliveries.trouble() == ""
    writer._polled_s += 60
    writer._on_delivery(None, Report(time.time() - 60))
    assert "60 s ahead" in deliveries.trouble()


def test_timestamp_of_the_sender_does_not_measure_the_clock(deliveries: Deliveries) -> None:
    deliveries.measure_clock(Report(time.time() - 3600, TIMESTAMP_CREATE_TIME))  # type: ignore[arg-type]
    assert deliveries.trouble() == ""
