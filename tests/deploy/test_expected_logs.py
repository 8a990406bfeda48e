"""Lines of container logs that count as unexpected errors."""

from __future__ import annotations

import pytest

from tests.deploy.expected_logs import unexpected

APPEND = (
    "[2026-01-01 00:00:00,000] ERROR [ReplicaManager broker=2] Error processing append operation"
)
INFO = "[2026-01-01 00:00:01,000] INFO all is well (kafka.Broker)\n"


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("org.apache.kafka.common.errors.NotEnoughReplicasException: isr is Set(2)", 0),
        ("org.apache.kafka.common.errors.OutOfOrderSequenceException: 7 (incoming), 3", 0),
        ("java.io.IOException: No space left on device", 1),
    ],
)
def test_broker_error_is_judged_with_its_exception(cause: str, told: int) -> None:
    entry = f"{APPEND} on partition x (kafka.server.ReplicaManager)\n{cause}"
    assert unexpected("kafka-2", f"{INFO}{entry}\n{INFO}") == [entry][:told]


def test_broker_output_before_its_first_timestamp_is_not_an_error() -> None:
    assert unexpected("kafka-1", f"Formatting metadata directory\n{INFO}") == []
    assert unexpected("kafka-1", "") == []


@pytest.mark.parametrize("service", ["placements", "analytics"])
def test_spark_logs_are_text_and_only_errors_count(service: str) -> None:
    fails = "26/11/25 13:44:18 ERROR Executor: Exception in task 0.0"
    start = "WARNING: Using incubator modules: vector\n26/11/25 13:44:17 WARN NativeCodeLoader: x"
    assert unexpected(service, f"{start}\n{fails}") == [fails]
    assert unexpected("catch-up", start) == start.splitlines()


def test_controller_registration_without_a_quorum_is_expected() -> None:
    at = "[2026-01-01 00:00:00,000] ERROR [ControllerRegistrationManager id=2 incarnation=x] "
    told = "RegistrationResponseHandler: channel manager timed out before sending the request."
    assert unexpected("kafka-2", f"{at}{told} (kafka.server.ControllerRegistrationManager)\n") == []
    assert unexpected("kafka-2", f"{at}something else\n") == [f"{at}something else"]
