"""``stele log replay`` over a real broker has the result of the fold in memory."""

from __future__ import annotations

import msgspec
import pytest
from confluent_kafka import Producer

from stele.cli.main import run
from stele.domain.facts import Epoch
from stele.domain.model.cluster import ClusterCreated
from stele.domain.snapshot import state_hash
from stele.log.codec import encode_epoch
from stele.log.flows import flow_topic
from stele.log.fold import Fold

pytestmark = pytest.mark.broker


def epochs(cluster: str) -> list[bytes]:
    """Return three winners and a loser."""
    ids = [bytes(16), *(bytes([number]) * 16 for number in range(1, 5))]
    created = ClusterCreated(cluster, "id", "Murmur3Partitioner")

    def epoch(number: int, previous: int, state: int) -> bytes:
        return encode_epoch(
            Epoch(
                prev_state_id=ids[previous],
                state_id=ids[state],
                log_id=bytes([9]) * 16,
                epoch=number,
                request_id=f"r{state}",
                command="found",
                facts=(created,),
            )
        )

    return [epoch(1, 0, 1), epoch(2, 1, 2), epoch(2, 1, 4), epoch(3, 2, 3)]


def test_replay_folds_the_topic_from_its_beginning(
    kafka: str, topics: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records = epochs(topics)
    producer = Producer({"bootstrap.servers": kafka})
    fold = Fold()
    for offset, value in enumerate(records):
        producer.produce(flow_topic(topics, "epochs"), value)
        fold.offer(offset, value)
    assert producer.flush(20) == 0
    arguments = ["log", "replay", "--bootstrap", kafka, "--cluster", topics]
    assert run([*arguments, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["epoch"] == 3
    assert found["losers"] == 1
    assert found["hash"] == state_hash(fold.image)
    assert run([*arguments, "--json", "--epoch", "2"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["epoch"] == 2
    assert run([*arguments, "--epoch", "4"]) == 1
    assert "There is no epoch 4 yet: the log ends at epoch 3." in capsys.readouterr().err


def test_replay_of_a_missing_topic_fails(
    kafka: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["log", "replay", "--bootstrap", kafka, "--cluster", cluster, "--timeout", "2"]
    assert run(arguments) == 1
    assert f"has no topic {flow_topic(cluster, 'epochs')}" in capsys.readouterr().err
