"""Explain what brokers refuse, and what to do about it.

A client retries without end, and a call that times out does not give the cause. The last error
passed to the client's ``error_cb`` does.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

RECENT_S: Final = 5.0
"""Age up to which a refusal is current. A refused client retries each second, later on a busy
machine, and reports each failure."""
SAY_AGAIN_S: Final = 30.0
"""Interval at which an unchanged refusal is logged again."""

_LOGIN: Final = (
    "Correct STELE_KAFKA_SASL_USERNAME, STELE_KAFKA_SASL_MECHANISM or what the file of"
    " STELE_KAFKA_SASL_PASSWORD_FILE holds, and start this process again; or give that user that password at"
    " the brokers."
)
_AUTHORITY: Final = (
    "STELE_KAFKA_SSL_CA_FILE has to hold the authority of the brokers' certificates, and these have to name"
    " the brokers' hosts."
)
_CERTIFICATE: Final = (
    "They want a certificate of this process, or another one: STELE_KAFKA_SSL_CERTIFICATE_FILE and"
    " STELE_KAFKA_SSL_KEY_FILE."
)
_LISTENER: Final = (
    "Is that listener one of STELE_KAFKA_SECURITY_PROTOCOL? Ports differ from protocol to protocol."
)
_ACLS: Final = "Give its user the ACLs of docs/guides/secure.md."

_LOGIN_CODES: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own names
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
_ACL_CODES: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_TLS_WORDS: Final = (
    (
        re.compile(r"alert (bad certificate|certificate required|unknown ca|.*certificate)"),
        _CERTIFICATE,
    ),
    (re.compile(r"certificate verify failed|certificate could not be verified"), _AUTHORITY),
    (re.compile(r"SSL handshake failed"), _LISTENER),
)
"""OpenSSL's texts with the hint for each. Some arrive with the error code of a lost connection."""
_WHEN: Final = re.compile(r" \(after .*\)$")

_log: Final = logging.getLogger(__name__)


class _Process:
    """State of this process.

    ``newest`` is the newest refusal of any client, with its monotonic time in seconds.
    """

    newest = ("", 0.0)
    start_wait = ""


def note_start_wait(why: str) -> None:
    """Note why the start of this process waits, for its health check."""
    _Process.start_wait = why


def start_wait() -> str:
    """Return the newest reason why the start of this process waits; empty if there is none."""
    return _Process.start_wait


def refused_lately() -> str:
    """Return the newest current refusal of any client of this process; empty if there is none."""
    said, at_s = _Process.newest
    return f"Refused by Kafka: {said}" if said and time.monotonic() - at_s < RECENT_S else ""


def refusal(error: KafkaError) -> str:
    """Return the client's text and a hint for a refusal; empty for an error that is none."""
    said = _WHEN.sub("", error.str()).rstrip(".")
    if error.code() in _LOGIN_CODES:
        return f"{said}. {_LOGIN}"
    if error.code() in _ACL_CODES:
        return f"{said}. {_ACLS}"
    hint = next((hint for words, hint in _TLS_WORDS if words.search(said)), "")
    return f"{said}. {hint}" if hint else ""


class Refusals:
    """The refusals of one or several clients, as ``error_cb``. Repeats are logged every 30 s."""

    def __init__(self) -> None:
        self._newest = ("", 0.0)
        self._logged_s = -SAY_AGAIN_S

    def __call__(self, error: KafkaError) -> None:
        said, now_s = refusal(error), time.monotonic()
        if said:
            if said != self._newest[0] or now_s - self._logged_s >= SAY_AGAIN_S:
                _log.warning("refused by Kafka: %s", said)
                self._logged_s = now_s
            self._newest = _Process.newest = (said, now_s)

    @property
    def newest(self) -> str:
        """The newest current refusal; empty if there is none."""
        said, at_s = self._newest
        return said if said and time.monotonic() - at_s < RECENT_S else ""

    def why(self, error: Exception, client: Consumer | AdminClient | None = None) -> str:
        """Return the text of ``error`` with the current refusal, which may be its cause.

        ``client`` is polled first, because it passes errors to ``error_cb`` only when it is polled.
        """
        if client is not None:
            client.poll(0)
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(cause, KafkaError):
            self(cause)
        newest = self.newest
        text = cause.str() if isinstance(cause, KafkaError) else str(error)
        if not newest:
            return text
        return newest if newest.startswith(text.rstrip(".")) else f"{text}: {newest}"


# Count records that the brokers did not take, and measure this machine's clock against theirs.
#
# Senders of flows repeat what matters, so a failed delivery raises no exception. Without a count
# and a log line, a process whose records are all rejected would seem healthy.


UNDELIVERED_AGAIN_S: Final = 60.0
"""Each topic and error is logged once in this time, and shown in /healthz for as long."""
MAX_CLOCK_OFFSET_S: Final = 5.0
"""Clocks that use NTP differ by milliseconds. Timestamps of writes decide which one is newer."""


class Deliveries:
    """Delivery reports of the producers of one process. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = Counter[tuple[str, str]]()
        self._logged_s: dict[tuple[str, str], float] = {}
        self._newest = ("", 0.0)
        self._clock_offset_s = 0.0

    def fail(self, topic: str, error: KafkaError) -> None:
        """Count a record that was not delivered."""
        key, now_s = (topic, error.name()), time.monotonic()
        with self._lock:
            self._failed[key] += 1
            count = self._failed[key]
            is_due = now_s - self._logged_s.get(key, -UNDELIVERED_AGAIN_S) >= UNDELIVERED_AGAIN_S
            text = f"{count} records of {topic} were not delivered: {error.name()}, {error.str()}{_hint(error)}"
            self._newest = (text, now_s)
            if is_due:
                self._logged_s[key] = now_s
        if is_due and not refusal(error):  # refusals are logged as such
            _log.warning("%s", text)

    def counts(self) -> dict[tuple[str, str], int]:
        """Failed deliveries since the start, by topic and by Kafka's name of the error."""
        with self._lock:
            return dict(self._failed)

    def trouble(self) -> str:
        """Return the trouble to show to people; empty while delivery and clock are in order."""
        text, at_s = self._newest
        found = [text] if text and time.monotonic() - at_s < UNDELIVERED_AGAIN_S else []
        offset_s = self._clock_offset_s
        if abs(offset_s) > MAX_CLOCK_OFFSET_S:
            where = "ahead of" if offset_s > 0 else "behind"
            found.append(
                f"the clock of this machine is {abs(offset_s):.0f} s {where} the brokers' clock, more than"
                f" {MAX_CLOCK_OFFSET_S:g} s: synchronize it"
            )
        return "; ".join(found)

    def measure_clock(self, message: Message) -> None:
        """Measure the clock's offset by the report of a record that was delivered just now.

        The broker's time of the append lies between the send and this report. Only a difference
        outside of that interval counts as an offset.
        """
        kind, appended_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:  # any other timestamp is this process's own
            return
        reported_s, appended_s = time.time(), appended_ms / 1000
        sent_s = reported_s - (message.latency() or 0.0)
        self._clock_offset_s = max(0.0, sent_s - appended_s) + min(0.0, reported_s - appended_s)


def _hint(error: KafkaError) -> str:
    if error.code() != KafkaError.INVALID_TIMESTAMP:
        return ""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return (
        f". The clock of this machine shows {now}: synchronize it, or set message.timestamp.type=LogAppendTime"
        " for the topic"
    )


DELIVERIES: Final = Deliveries()
"""The delivery reports of this process."""
