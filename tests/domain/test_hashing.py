"""Hashes are equal in builds without later fields, as long as these fields have their defaults."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pytest

from stele.domain import hashing
from stele.domain.commands import COMMAND_DIGEST_BYTES, AnyCommand, CreateTable, command_digest
from stele.domain.hashing import as_before, hash_of_facts
from stele.domain.model.operations import Exclude, ReconfigureCatchUp
from stele.domain.model.requests import Request, RequestChanged
from stele.domain.model.schema import TableOptions
from stele.domain.names import RequestKind, RequestStatus

REQUEST = Request(request_id="r", kind=RequestKind.JOIN, status=RequestStatus.PENDING)
IN_THE_LOG = hashing.LATER_FIELDS
LATER = (b',"submitted_ms":0', b',"auto_repair_enabled":""')
PLAIN = msgspec.json.Encoder(order="deterministic")


@pytest.fixture(autouse=True)
def _came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "LATER_FIELDS", LATER)


def test_later_field_counts_once_it_is_set() -> None:
    later = msgspec.structs.replace(REQUEST, submitted_ms=10)
    assert hash_of_facts([RequestChanged(REQUEST)]) != hash_of_facts([RequestChanged(later)])
    options = TableOptions(auto_repair_enabled="on")
    digests = {command_digest(CreateTable("k.t", each)) for each in (TableOptions(), options)}
    assert len(digests) == 2


def test_later_field_with_its_default_is_left_out() -> None:
    for shown in (RequestChanged(REQUEST), CreateTable("k.t")):
        encoded = PLAIN.encode(shown)
        names = [b'"%b"' % field.split(b'"')[1] for field in LATER]
        assert any(name in encoded for name in names)
        assert not any(name in as_before(encoded) for name in names)
        assert msgspec.json.decode(as_before(encoded), type=type(shown)) == shown


@pytest.mark.parametrize(
    ("command", "as_of_older_builds"),
    [
        (Exclude(("n1",)), b'{"type":"exclude","node_ids":["n1"]}'),
        (
            ReconfigureCatchUp(replication="3"),
            b'{"type":"reconfigure_catch_up","replication":"3","as_of_epoch":0}',
        ),
    ],
)
def test_commands_keep_the_digest_of_older_builds(
    monkeypatch: pytest.MonkeyPatch, command: AnyCommand, as_of_older_builds: bytes
) -> None:
    monkeypatch.setattr(hashing, "LATER_FIELDS", IN_THE_LOG)
    digest = blake2b(as_of_older_builds, digest_size=COMMAND_DIGEST_BYTES).digest()
    assert command_digest(command) == digest
    forced = Exclude(("n1",), force=True)
    assert command_digest(forced) != command_digest(Exclude(("n1",)))


def test_text_that_looks_like_a_later_field_is_kept() -> None:
    text = ',"submitted_ms":0'
    shown = RequestChanged(msgspec.structs.replace(REQUEST, reason=text, submitted_ms=3))
    assert as_before(PLAIN.encode(shown)) != b""
    assert msgspec.json.decode(as_before(PLAIN.encode(shown)), type=RequestChanged) == shown
