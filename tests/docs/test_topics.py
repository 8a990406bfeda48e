"""The page of topics agrees with the encoders, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stele
from stele.domain import not_taken
from stele.domain.commands import COMMANDS
from stele.log.chain import MAGIC
from stele.log.schemas import HEADER_BYTES, header_of, load_schemas
from stele.words.operations import TEXTS
from tests.docs.pages import REPOSITORY
from tests.docs.topics_page import PAGE, SAMPLES, Sample, pieces


def test_framing_example_has_the_current_schema_fingerprint() -> None:
    fingerprint = load_schemas().headers["Envelope"][len(MAGIC) :].hex()
    assert f"`STELE_COMMAND_SCHEMA_IDS=7={fingerprint}`" in PAGE.read_text()


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.topic for sample in SAMPLES])
def test_sample_decodes_and_its_pieces_cover_the_record(sample: Sample) -> None:
    encoded = sample.encode(sample.message)
    assert sample.decode(encoded) == sample.message
    assert b"".join(piece.content for piece in pieces(sample)) == encoded[HEADER_BYTES:]
    assert encoded[:HEADER_BYTES] in {header_of(s) for _, s in load_schemas().by_header.values()}


def test_log_page_lists_every_code_of_an_undecided_command() -> None:
    page = (REPOSITORY / "docs" / "reference" / "log.md").read_text()
    table = page.split("Some answers decide nothing")[1].split("\n\n")[1]
    cells = [line.split("|")[1] for line in table.splitlines()]
    listed = {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}
    known = [value for name, value in vars(not_taken).items() if name.isupper()]
    codes = {value for value in known if isinstance(value, str)} - {not_taken.HORIZON_MS}
    assert listed == codes | {"malformed_command", "unknown_schema"}


SENT_BY_NODES_AND_READERS = {"Join", "Replace", "AnnounceReader"}
"""Nodes also send joins and replacements, and readers of the log announce themselves."""


def test_commands_created_by_the_cli_and_the_console_are_not_of_services() -> None:
    """Compare ``of_services`` with the code that creates each command."""
    package = Path(stele.__path__[0])
    for_people = [package / "cli", package / "console", package / "words"]
    text = "".join(path.read_text() for folder in for_people for path in folder.rglob("*.py"))
    made = {*re.findall(r"\b([A-Z]\w+)\(", text)} | SENT_BY_NODES_AND_READERS
    of_console = {operation.command for operation in TEXTS.values()}
    for command in COMMANDS:
        by_people = command.__name__ in made or str(command.__struct_config__.tag) in of_console
        assert by_people is not command.of_services, command.__name__
