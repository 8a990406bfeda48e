"""Texts of librdkafka about a recreated topic; test_contract.py uses the real client."""

import logging

import pytest

from stele.log.kafka import Notices

CHANGED = "METADATA [rdkafka#consumer-7] [thrd:main]: %s"


def test_a_topic_of_another_id_is_told() -> None:
    told = list[str]()
    Notices(told.append).log(
        logging.DEBUG,
        CHANGED,
        "Topic epochs changed id from 5oYdRj0hSIWFJ2bDZJ1ZbA to hAvzmkvyQVeQO8zL6sQhDQ",
    )
    assert told == [
        "the topic is another one, hAvzmkvyQVeQO8zL6sQhDQ and not 5oYdRj0hSIWFJ2bDZJ1ZbA"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "Topic epochs changed id from AAAAAAAAAAAAAAAAAAAAAA to hAvzmkvyQVeQO8zL6sQhDQ",
        "Topic epochs partition 0 Leader 1 Epoch 0",
    ],
)
def test_an_id_that_was_not_known_before_is_no_news(line: str) -> None:
    told = list[str]()
    Notices(told.append).log(logging.DEBUG, CHANGED, line)
    assert told == []


def test_more_than_debugging_is_a_warning_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    told = list[str]()
    Notices(told.append).log(logging.ERROR, "FAIL %s", "disconnected")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "FAIL disconnected")
    ]
    assert told == []
