"""Answers of an admin client of Kafka, which leaves no resources after errors."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from stele.log.kafka import answer_of


class Client:
    """A client whose end is observed."""


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def failed() -> Future[str]:
    """Return a failed future as the library does: its error's traceback holds the future."""
    made = Future[str]()
    try:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    except KafkaException as error:
        made.set_exception(error)
    return made


def test_answer_of_returns_the_result_or_raises_the_error() -> None:
    given = Future[str]()
    given.set_result("all")
    assert answer_of(given, 1.0) == "all"
    with pytest.raises(KafkaException) as raised:
        answer_of(failed(), 1.0)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(TimeoutError):
        answer_of(Future[str](), 0.01)


def test_raised_error_keeps_no_reference_to_the_client() -> None:
    clients, asked = list[weakref.ref[Client]](), failed()

    def ask() -> None:
        client = Client()
        clients.append(weakref.ref(client))
        answer_of(asked, 1.0)

    with contextlib.suppress(KafkaException):
        ask()
    assert clients[0]() is None
