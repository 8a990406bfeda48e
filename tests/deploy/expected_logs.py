"""Errors that containers may log while others are killed, each with a reason."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    service: str  # regular expression for the whole name of the service
    text: str  # regular expression that is searched in the line
    why: str


KILLED = "another container was killed by the test"
EXPECTED: tuple[Expected, ...] = (
    Expected(".*node.*", r"this node serves no data any more", "the test had it leave"),
    Expected(".*", r"\|FAIL\|.*(Connect to|Disconnected|Failed to resolve|Connection)", KILLED),
    Expected(
        ".*",
        r"\|ERROR\|.*(Connect to|Disconnected|Failed to resolve|brokers are down)",
        KILLED,
    ),
    Expected(
        "session-guard|tablet-balancer",  # aiokafka, under Faust
        r"Unable connect to node|Failed fetch messages from|Unable to request metadata from|"
        r"Unable to update metadata from|Group Coordinator Request failed|"
        r"Heartbeat send request failed|Heartbeat session expired|OffsetCommit.*failed|"
        r"Error sending \w+ to node \d+ .* -- marking coordinator dead|Failed fetch offsets from",
        KILLED,
    ),
    Expected(
        "metadata-log-.*|coordinator-.*",
        r"\|FATAL\|.*Static consumer fenced by other consumer with same group\.instance\.id",
        "one that was killed comes back under its name, asks twice, and its second question fences its"
        " first: it joins again with a new consumer, and must be healthy at the end",
    ),
    Expected(
        "placements",
        r"\|FATAL\|.*This instance has been fenced by a newer instance",
        "a transaction that took longer than it may, since a broker was killed or the machine stood still, is"
        " ended by the brokers: the writer opens anew, and what it writes is checked",
    ),
    Expected(
        "placements",
        r"_TIMED_OUT.*a topic cannot be written",
        "no broker takes records in time while one was killed or the machine stands still: it is tried again"
        " every 10 s, and what the topic holds is checked",
    ),
    Expected(
        "kafka-.*",
        r"Unexpected error handling request .*apiKey=CONTROLLER_REGISTRATION|"
        r"RegistrationResponseHandler: channel manager timed out before sending the request",
        "three controllers start at once, and register again until their quorum has formed",
    ),
    Expected(
        "kafka-.*",
        r"Exceptionally slow controller event|"
        r"Unexpected error handling request .*apiKey=BROKER_HEARTBEAT",
        "the machine's disk stood still for seconds; whether all goes on is what the tests check",
    ),
    Expected(
        "kafka-.*",
        r"Error processing append operation.*\n.*(NotEnoughReplicas|OutOfOrderSequence)\w*Exception",
        f"{KILLED}, and a second broker was late: nothing is acknowledged until two have it, and who"
        " asked asks again, in the order of its batches",
    ),
)

_LIBRDKAFKA = re.compile(r"^%(\d)\|")  # the number is syslog's severity: 3 is an error
_ERROR_SEVERITY = 3
_BROKER_ENTRY = re.compile(r"^(?=\[\d{4}-)", re.MULTILINE)
_BROKER_ERROR = re.compile(r"\] (ERROR|FATAL) ")
_SPARK_ERROR = re.compile(r"^\d\d/\d\d/\d\d [\d:]+ (ERROR|FATAL) |Traceback|^Exception in thread")
OF_SPARK = ("placements", "analytics")
_REDIS_ERROR = re.compile(r"fatal|error|bug report", re.IGNORECASE)


def unexpected(service: str, log: str) -> list[str]:
    """Return unexpected errors of a service's log: lines, with the exception for a broker."""
    return [
        line
        for line in _entries(service, log)
        if _is_error(service, line)
        and not any(
            re.fullmatch(known.service, service) and re.search(known.text, line)
            for known in EXPECTED
        )
    ]


def _entries(service: str, log: str) -> list[str]:
    """Return entries of a log. An entry of a broker includes the following lines without a timestamp."""
    if service.startswith("kafka-"):
        return [entry.rstrip("\n") for entry in _BROKER_ENTRY.split(log) if entry]
    return log.splitlines()


def _is_error(service: str, line: str) -> bool:
    if service.startswith("kafka-"):
        return _BROKER_ERROR.search(line) is not None
    if service == "redis":
        return _REDIS_ERROR.search(line) is not None
    if service == "prometheus":
        return "level=error" in line
    return _is_error_of_ours(service, line)


def _is_error_of_ours(service: str, line: str) -> bool:
    severity = _LIBRDKAFKA.match(line)
    if severity is not None:
        return int(severity.group(1)) <= _ERROR_SEVERITY
    if line.startswith("{"):
        try:
            return json.loads(line).get("level") in ("error", "critical")
        except ValueError:
            return True
    if service in OF_SPARK:  # Spark writes text
        return _SPARK_ERROR.search(line) is not None
    return bool(line.strip())  # services of Stele write only JSON
