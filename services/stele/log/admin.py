"""Read the answers of a Kafka admin client without leaking the client.

The library keeps an error in a reference cycle with its future. `Future.result` would tie every
frame that it passes to this cycle, including one that holds the client. Cycles are rarely collected
(`runtime.memory`), and each client has four threads and as many connections.
"""

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaException

T = TypeVar("T")


def answer_of(asked: "Future[T]", timeout_s: float) -> T:
    """Return the answer. Raises KafkaException, and TimeoutError after ``timeout_s``."""
    # ``exception`` does not raise, so no frame becomes part of the cycle. The new exception is free
    # of it too.
    error = asked.exception(timeout_s)
    if error is not None:
        raise KafkaException(*error.args)
    return asked.result()
