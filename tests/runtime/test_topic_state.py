"""Comparison of topics with the required settings. Each difference has its effect and its remedy."""

from __future__ import annotations

import pytest

from stele.runtime.kafka import ActualTopic, Harm, Topic, differences, sentences, topic_specs

SPECS = {str(topic): spec for topic, spec in topic_specs(3).items()}
AS_MADE = {name: ActualTopic(spec.partitions, 3, spec.config) for name, spec in SPECS.items()}


def with_settings(topic: Topic, **config: str) -> dict[str, ActualTopic]:
    state = AS_MADE[topic]
    changed = {name.replace("_", "."): value for name, value in config.items()}
    return AS_MADE | {
        str(topic): ActualTopic(state.partitions, state.copies, {**state.config, **changed})
    }


def test_created_topics_have_no_differences() -> None:
    assert differences(SPECS, AS_MADE) == ()
    untold = {name: ActualTopic(spec.partitions, 3, {}) for name, spec in SPECS.items()}
    assert differences(SPECS, untold) == (), "an unknown setting is no difference"
    assert differences(SPECS, {}) == (), "a missing topic is no difference"


@pytest.mark.parametrize(
    ("topic", "name", "value", "harm"),
    [
        (Topic.EPOCHS, "cleanup.policy", "compact", Harm.LOSS),
        (Topic.EPOCHS, "cleanup.policy", "compact,delete", Harm.LOSS),
        (Topic.EPOCHS, "retention.ms", "604800000", Harm.LOSS),
        (Topic.EPOCHS, "retention.bytes", "1", Harm.LOSS),
        (Topic.EPOCHS, "unclean.leader.election.enable", "true", Harm.LOSS),
        (Topic.EPOCHS, "max.message.bytes", "1048588", Harm.LOSS),
        (Topic.EPOCHS, "message.timestamp.type", "CreateTime", Harm.OTHER),
        (Topic.ACKS, "cleanup.policy", "delete", Harm.LOSS),
        (Topic.ORDERS, "message.timestamp.type", "CreateTime", Harm.OTHER),
        (Topic.ORDERS, "retention.ms", "1000", Harm.LOSS),
        (Topic.LOAD, "cleanup.policy", "compact", Harm.LOSS),
        (Topic.LOAD, "max.compaction.lag.ms", "9223372036854775807", Harm.OTHER),
    ],
)
def test_each_harmful_setting_is_named(topic: Topic, name: str, value: str, harm: Harm) -> None:
    (found,) = differences(SPECS, with_settings(topic, **{name: value}))
    assert (found.topic, found.harm) == (topic, harm)
    assert f"with {name}={value} " in found.text
    assert f"set it to {SPECS[topic].config[name]}" in found.text


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        (Topic.ORDERS, "retention.ms", "-1"),
        (Topic.ORDERS, "retention.ms", "604800000"),
        (Topic.LOAD, "cleanup.policy", "delete,compact"),
        (Topic.EPOCHS, "max.message.bytes", "16777216"),
        (Topic.ACKS, "segment.ms", "60000"),
        (Topic.EPOCHS, "min.insync.replicas", "3"),
    ],
)
def test_equivalent_settings_are_not_named(topic: Topic, name: str, value: str) -> None:
    assert differences(SPECS, with_settings(topic, **{name: value})) == ()


@pytest.mark.parametrize("topic", [Topic.EPOCHS, Topic.ACKS])
@pytest.mark.parametrize(("copies", "in_sync"), [(1, "1"), (2, "1"), (2, "2"), (3, "1")])
def test_low_replication_is_named_except_in_development(
    topic: Topic, copies: int, in_sync: str
) -> None:
    config = {**SPECS[topic].config, "min.insync.replicas": in_sync}
    states = AS_MADE | {str(topic): ActualTopic(SPECS[topic].partitions, copies, config)}
    (found,) = differences(SPECS, states)
    assert (found.topic, found.harm) == (topic, Harm.DURABILITY)
    assert "STELE_DEVELOPMENT=true" in found.text
    assert ("give it 3 copies" in found.text) == (copies < 3)
    assert ("set min.insync.replicas to 2" in found.text) == (in_sync == "1")
    assert differences(SPECS, states, development=True) == ()


def test_rebuildable_topic_may_have_one_replica() -> None:
    one = topic_specs(1)[Topic.ORDERS].config
    assert differences(SPECS, AS_MADE | {str(Topic.ORDERS): ActualTopic(1, 1, one)}) == ()


def test_topic_with_fewer_replicas_than_in_sync_takes_no_records() -> None:
    config = SPECS[Topic.ORDERS].config
    (found,) = differences(SPECS, AS_MADE | {str(Topic.ORDERS): ActualTopic(1, 1, config)})
    assert found.harm is Harm.LOSS and "takes no records" in found.text


def test_partitions_are_raised_if_the_topic_may_have_several() -> None:
    for topic, count, raise_to in ((Topic.ACKS, 1, 4), (Topic.ACKS, 6, None), (Topic.EPOCHS, 3, 0)):
        states = AS_MADE | {str(topic): ActualTopic(count, 3, SPECS[topic].config)}
        found = [each.raise_to for each in differences(SPECS, states)]
        assert found == ([] if raise_to is None else [raise_to])


def test_topics_with_equal_differences_share_one_sentence() -> None:
    by_clients = {"message.timestamp.type": "CreateTime"}
    old = {
        name: ActualTopic(spec.partitions, 3, {**spec.config, **by_clients})
        for name, spec in SPECS.items()
    }
    (sentence,) = sentences(differences(SPECS, old))
    assert all(name in sentence for name in SPECS)
