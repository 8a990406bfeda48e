"""Commands in Confluent's framing equal those in single-object encoding, by ids registered beforehand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.commands import Envelope, SetSetting
from stele.domain.model.requests import named
from stele.log.codec import (
    DecodeError,
    Framing,
    decode_envelope,
    encode_envelope,
    schema_ids,
    unframed,
)
from stele.log.schemas import load_schemas

ENVELOPE = Envelope(request_id=named("framed"), command=SetSetting("colour", "blue"), actor="a")
PLAIN = encode_envelope(ENVELOPE)
FINGERPRINT = PLAIN[2:10].hex()
IDS = schema_ids(f"7={FINGERPRINT},4294967295={FINGERPRINT}", "Envelope")


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


@pytest.mark.parametrize("number", [7, 2**32 - 1])
def test_framed_command_decodes_to_the_same_command(number: int) -> None:
    assert decode_envelope(unframed(framed(number, PLAIN[10:]), IDS)) == ENVELOPE


def test_unframed_bytes_are_unchanged() -> None:
    assert unframed(PLAIN, {}) is PLAIN
    assert unframed(b"", {}) == b""


def test_error_of_an_unknown_schema_id_names_the_setting() -> None:
    with pytest.raises(DecodeError, match="STELE_COMMAND_SCHEMA_IDS") as error:
        unframed(framed(8, PLAIN[10:]), IDS)
    assert error.value.unknown_schema


def test_schema_ids_accept_only_schemas_of_the_envelope() -> None:
    with pytest.raises(ValueError, match=FINGERPRINT):
        schema_ids("7=0123456789abcdef", "Envelope")


def test_records_of_the_other_framing_are_refused() -> None:
    headers = load_schemas().releases["Envelope"]
    ids = ",".join(f"{at}={header[2:].hex()}" for at, header in enumerate(headers, 1))
    as_it_is, by_ids = Framing(), Framing(ids, "Envelope")
    in_frame = by_ids.framed(PLAIN)
    assert in_frame[:1] == b"\0" != as_it_is.framed(PLAIN)[:1]
    assert as_it_is.plain(PLAIN) == by_ids.plain(in_frame) == PLAIN
    for framing, value in ((as_it_is, in_frame), (by_ids, PLAIN)):
        with pytest.raises(DecodeError, match="not in the form"):
            framing.plain(value)


@given(st.binary(max_size=40))
def test_any_bytes_raise_only_a_decode_error(noise: bytes) -> None:
    for value in (b"\0" + noise, framed(7, noise)):
        try:
            decode_envelope(unframed(value, IDS))
        except DecodeError:
            continue
