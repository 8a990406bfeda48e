"""The page of topics is what the code writes, byte for byte."""

from __future__ import annotations

import pytest

from stele.log.schemas import HEADER_BYTES, header_of, load_schemas
from tests.docs.topics_page import PAGE, SAMPLES, Sample, page_with, pieces


def test_the_page_is_made_from_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.topics_page writes it anew"


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.topic for sample in SAMPLES])
def test_the_sample_is_a_record_and_its_pieces_are_all_of_it(sample: Sample) -> None:
    encoded = sample.encode(sample.message)
    assert sample.decode(encoded) == sample.message
    assert b"".join(piece.content for piece in pieces(sample)) == encoded[HEADER_BYTES:]
    assert encoded[:HEADER_BYTES] in {header_of(s) for _, s in load_schemas().by_header.values()}
