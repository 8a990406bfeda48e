"""The commit that everything is measured with: a setting whose record in the log has about 200 bytes."""

from __future__ import annotations

import base64
import json
import uuid
from itertools import count

from stele.domain.commands import Envelope, SetSetting
from stele.log.codec import encode_envelope
from stele.runtime.request_ids import new_request_id

RECORD_BYTES = 200
VALUE = "v" * 81
"""Fills the record of the log up to RECORD_BYTES."""
KEYS = 64
ID_CHARS = 36
ID_AT = 11
"""Where the request id stands in the bytes of an envelope or outcome: after header and length."""

_PLACEHOLDER = str(uuid.UUID(int=0))
_numbers = count(1)
_run = new_request_id()[:23]


def request_id() -> str:
    """A UUID of version 7 whose last digits count, so that it is cheap."""
    return f"{_run}-{next(_numbers):012x}"


def envelope(number: int) -> Envelope:
    return Envelope(
        request_id=request_id(), command=SetSetting(f"bench-{number % KEYS:04d}", VALUE)
    )


class EnvelopeBytes:
    """Envelopes as bytes of the commands topic, made from a template."""

    def __init__(self) -> None:
        given = Envelope(request_id=_PLACEHOLDER, command=SetSetting("bench-0000", VALUE))
        value = encode_envelope(given)
        assert value[ID_AT : ID_AT + ID_CHARS] == _PLACEHOLDER.encode()
        self._head, self._tail = value[:ID_AT], value[ID_AT + ID_CHARS :]

    def make(self, request: bytes) -> bytes:
        return self._head + request + self._tail


def http_request(host: str, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def commit_body() -> bytes:
    command = {"type": "set_setting", "name": f"bench-{next(_numbers) % KEYS:04d}", "value": VALUE}
    return json.dumps({"request_id": request_id(), "command": command}).encode()


ETCD_KEY = base64.b64encode(b"stele/epoch").decode()


def etcd_put_body(number: int) -> bytes:
    key = base64.b64encode(b"bench/%04d" % (number % KEYS)).decode()
    value = base64.b64encode(b"v" * RECORD_BYTES).decode()
    return json.dumps({"key": key, "value": value}).encode()


def etcd_chain_body(revision: int) -> bytes:
    """Put the one key if nobody did since ``revision``; else tell its revision."""
    value = base64.b64encode(b"v" * RECORD_BYTES).decode()
    return json.dumps(
        {
            "compare": [
                {"key": ETCD_KEY, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            ],
            "success": [{"request_put": {"key": ETCD_KEY, "value": value}}],
            "failure": [{"request_range": {"key": ETCD_KEY}}],
        }
    ).encode()
