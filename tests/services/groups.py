"""A second consumer with the same static member id. The broker fences the first, fatal for librdkafka."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from tests.polling import wait_until

DEADLINE_S = 240.0


def fence_member(
    bootstrap: str, group: str, topic: str, name: str, strategy: str = "range,roundrobin"
) -> None:
    """Join the group as ``name`` until a partition is assigned, and close without leaving the group."""
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


def forget_offsets(bootstrap: str, group: str) -> None:
    """Delete the group, so that its topic is read from the beginning. Its members must be dead."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def deleted() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
        except KafkaException:  # the broker still waits for a member to come back
            return False
        return True

    wait_until(deleted, f"group {group} to be deleted", DEADLINE_S)
