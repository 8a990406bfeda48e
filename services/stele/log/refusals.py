"""What brokers refuse, and what to do about it.

A client tries again for ever, and calls that only time out say nothing of it: what it said last to its
``error_cb`` is the cause.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

RECENT_S: Final = 5.0
"""A client that is refused tries again after a second, and says so each time; longer on a busy machine."""
SAY_AGAIN_S: Final = 30.0

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
_ACLS: Final = "Give its user the ACLs of docs/operations/security.md."

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
"""OpenSSL's words; some come with the code of a lost connection."""
_WHEN: Final = re.compile(r" \(after .*\)$")

_log: Final = logging.getLogger(__name__)


class _Process:
    """What all clients of this process were refused, whichever it was: the newest refusal, and when."""

    newest = ("", 0.0)


def refused_lately() -> str:
    """What the brokers refuse this process, in whatever it does; empty where nothing was refused lately."""
    said, at_s = _Process.newest
    return f"Refused by Kafka: {said}" if said and time.monotonic() - at_s < RECENT_S else ""


def refusal(error: KafkaError) -> str:
    """What was refused, in the client's words, and what to do; empty for an error that is no refusal."""
    said = _WHEN.sub("", error.str()).rstrip(".")
    if error.code() in _LOGIN_CODES:
        return f"{said}. {_LOGIN}"
    if error.code() in _ACL_CODES:
        return f"{said}. {_ACLS}"
    hint = next((hint for words, hint in _TLS_WORDS if words.search(said)), "")
    return f"{said}. {hint}" if hint else ""


class Refusals:
    """Of one client, or of several: their ``error_cb``, and told of other errors; logs them now and then."""

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
        """Empty where nothing was refused lately."""
        said, at_s = self._newest
        return said if said and time.monotonic() - at_s < RECENT_S else ""

    def why(self, error: Exception, client: Consumer | AdminClient | None = None) -> str:
        """What went wrong, with what was refused, which may be the cause: ``client`` has not told of it where
        it was not polled since.
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
