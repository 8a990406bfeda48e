"""Texts of librdkafka about a recreated topic; test_contract.py uses the real client."""

import logging

import pytest

from stele.log.kafka import Notices

CHANGED = "METADATA [rdkafka#consumer-7] [thrd:main]: %s"


def test_changed_topic_id_is_reported() -> None:
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
def test_lines_without_an_earlier_topic_id_are_ignored(line: str) -> None:
    told = list[str]()
    Notices(told.append).log(logging.DEBUG, CHANGED, line)
    assert told == []


def test_error_lines_become_warnings_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    told = list[str]()
    Notices(told.append).log(logging.ERROR, "FAIL %s", "disconnected")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "FAIL disconnected")
    ]
    assert told == []
