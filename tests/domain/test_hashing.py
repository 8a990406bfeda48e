"""Hashes are the same in builds that do not know fields which came later, as long as these say nothing."""

from __future__ import annotations

import msgspec
import pytest

from stele.domain import hashing
from stele.domain.commands import CreateTable, command_digest
from stele.domain.hashing import as_before, hash_of_facts
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.requests.facts import Request, RequestChanged
from stele.domain.schema.facts import TableOptions

REQUEST = Request(request_id="r", kind=RequestKind.JOIN, status=RequestStatus.PENDING)
LATER = (b',"submitted_ms":0', b',"auto_repair_enabled":""')
PLAIN = msgspec.json.Encoder(order="deterministic")


@pytest.fixture(autouse=True)
def _came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "LATER_FIELDS", LATER)


def test_a_later_field_counts_once_it_says_something() -> None:
    later = msgspec.structs.replace(REQUEST, submitted_ms=10)
    assert hash_of_facts([RequestChanged(REQUEST)]) != hash_of_facts([RequestChanged(later)])
    options = TableOptions(auto_repair_enabled="on")
    digests = {command_digest(CreateTable("k.t", each)) for each in (TableOptions(), options)}
    assert len(digests) == 2


def test_a_later_field_that_says_nothing_is_left_out() -> None:
    for shown in (RequestChanged(REQUEST), CreateTable("k.t")):
        encoded = PLAIN.encode(shown)
        names = [b'"%b"' % field.split(b'"')[1] for field in LATER]
        assert any(name in encoded for name in names)
        assert not any(name in as_before(encoded) for name in names)
        assert msgspec.json.decode(as_before(encoded), type=type(shown)) == shown


def test_a_text_that_looks_like_one_stays() -> None:
    text = ',"submitted_ms":0'
    shown = RequestChanged(msgspec.structs.replace(REQUEST, reason=text, submitted_ms=3))
    assert as_before(PLAIN.encode(shown)) != b""
    assert msgspec.json.decode(as_before(PLAIN.encode(shown)), type=RequestChanged) == shown
