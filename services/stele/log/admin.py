"""What an admin client of Kafka answers.

Where it is an error, the client's library keeps that in a cycle with the future, and `Future.result` would tie
every frame to it that it passes through: also one that holds the client. Cycles are collected hardly ever
(`runtime.memory`), and each client has four threads and as many connections.
"""

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaException

T = TypeVar("T")


def answer_of(asked: "Future[T]", timeout_s: float) -> T:
    """Raises KafkaException, TimeoutError."""
    error = asked.exception(timeout_s)
    if error is not None:
        raise KafkaException(*error.args)
    return asked.result()
