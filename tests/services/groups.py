"""A second member with somebody's name: the broker fences the first one out, which librdkafka calls fatal."""

from __future__ import annotations

from confluent_kafka import Consumer

from tests.polling import wait_until

DEADLINE_S = 30.0


def take_the_name_away(
    bootstrap: str, group: str, topic: str, name: str, strategy: str = "range,roundrobin"
) -> None:
    """Join as ``name`` until a partition is ours, and leave the name behind without saying so."""
    thief = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": name,
            "partition.assignment.strategy": strategy,
            "enable.auto.commit": False,
        }
    )
    thief.subscribe([topic])
    wait_until(lambda: _has_some(thief), f"a partition of {topic} for the thief", DEADLINE_S)
    thief.close()


def _has_some(consumer: Consumer) -> bool:
    consumer.poll(0.1)
    return bool(consumer.assignment())
