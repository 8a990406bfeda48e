"""The page of topics is what the code writes, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stele
from stele.domain.commands import COMMANDS
from stele.domain.requests import not_taken
from stele.log.chain import MAGIC
from stele.log.schemas import HEADER_BYTES, header_of, load_schemas
from tests.docs.pages import REPOSITORY
from tests.docs.topics_page import PAGE, SAMPLES, Sample, page_with, pieces


def test_the_page_is_made_from_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.topics_page writes it anew"


def test_the_framing_example_has_the_fingerprint_of_the_present_schema() -> None:
    fingerprint = load_schemas().headers["Envelope"][len(MAGIC) :].hex()
    assert f"`STELE_COMMAND_SCHEMA_IDS=7={fingerprint}`" in PAGE.read_text()


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.topic for sample in SAMPLES])
def test_the_sample_is_a_record_and_its_pieces_are_all_of_it(sample: Sample) -> None:
    encoded = sample.encode(sample.message)
    assert sample.decode(encoded) == sample.message
    assert b"".join(piece.content for piece in pieces(sample)) == encoded[HEADER_BYTES:]
    assert encoded[:HEADER_BYTES] in {header_of(s) for _, s in load_schemas().by_header.values()}


def test_the_page_of_the_log_has_every_code_of_an_answer_that_decides_nothing() -> None:
    page = (REPOSITORY / "docs" / "reference" / "log.md").read_text()
    table = page.split("Some answers decide nothing")[1].split("\n\n")[1]
    cells = [line.split("|")[1] for line in table.splitlines()]
    told = {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}
    known = {value for name, value in vars(not_taken).items() if name.isupper()}
    codes = {value for value in known if isinstance(value, str)} - {not_taken.HORIZON_MS}
    assert told == codes | {"malformed_command", "unknown_schema"}


OF_NODES_AND_READERS = {"Join", "Replace", "AnnounceReader"}
"""A store also joins by itself, and a reader of the log may delay its truncation."""


def test_people_send_what_the_command_line_and_the_console_send_and_services_the_rest() -> None:
    """Looked for where they are made, which knows nothing of the marks that the page is made from."""
    package = Path(stele.__path__[0])
    for_people = [package / "cli" / "commands", package / "console", package / "words"]
    text = "".join(path.read_text() for folder in for_people for path in folder.rglob("*.py"))
    made = {*re.findall(r"\b([A-Z]\w+)\(", text)}
    named = {
        *re.findall(
            r"\b([A-Z]\w+),$", (package / "console" / "operations.py").read_text(), re.MULTILINE
        )
    }
    for command in COMMANDS:
        by_people = command.__name__ in made | named | OF_NODES_AND_READERS
        assert by_people is not command.of_services, command.__name__
