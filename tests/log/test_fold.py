"""Which record wins, and where a reader must stop."""

import msgspec
import pytest

from stele.domain.facts import Epoch
from stele.domain.model.cluster import ClusterCreated
from stele.domain.model.features import SettingChanged
from stele.log.chain import FROZEN_BYTES
from stele.log.codec import encode_epoch
from stele.log.errors import (
    CorruptRecordError,
    LogError,
    LostWinnersError,
    MissedRecordsError,
    UnknownFeatureError,
    UnknownSchemaError,
)
from stele.log.fold import Fold

A, B, C = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16)

LOG = bytes([9] * 16)


def record(previous: bytes, own: bytes, epoch: int, **more: object) -> bytes:
    given = Epoch(
        prev_state_id=previous,
        state_id=own,
        log_id=LOG,
        epoch=epoch,
        request_id=f"r-{own[0]}",
        command="set_setting",
        facts=(SettingChanged("winner", str(own[0])),),
    )
    return encode_epoch(msgspec.structs.replace(given, **more))


def begun() -> Fold:
    fold = Fold()
    created = (ClusterCreated("blue", "blue/1", "Murmur3Partitioner"),)
    assert fold.offer(0, record(bytes(16), A, 1, facts=created)) is not None
    return fold


def test_first_record_on_the_state_wins_and_all_others_lose() -> None:
    fold = begun()
    assert fold.offer(1, record(A, B, 2)) is not None
    assert fold.offer(2, record(A, C, 2)) is None
    assert fold.offer(3, record(A, B, 2)) is None
    assert (fold.image.epoch, fold.image.state_id, fold.losers) == (2, B, 2)
    assert fold.image.features.settings["winner"] == "2"
    assert fold.next_offset == 4


@pytest.mark.parametrize("value", [b"", b"\xc3", b"text", b"\x00" * 60])
def test_invalid_bytes_stop_the_reader(value: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="At offset 1 of the log: it"):
        begun().offer(1, value)


def test_a_broken_winner_stops_the_reader() -> None:
    with pytest.raises(CorruptRecordError, match="offset 1"):
        begun().offer(1, record(A, B, 2)[:-2])


def test_a_broken_loser_does_not_matter() -> None:
    assert begun().offer(1, record(C, B, 2)[:-2]) is None


def test_an_unknown_schema_stops_the_reader_and_says_to_upgrade() -> None:
    value = b"\xc3\x01" + bytes(8) + record(A, B, 2)[10:]
    with pytest.raises(UnknownSchemaError, match="Upgrade this process"):
        begun().offer(1, value)


def test_an_unknown_feature_stops_the_reader_and_names_it() -> None:
    with pytest.raises(UnknownFeatureError, match=r"it needs tablets_v9, .* Upgrade"):
        begun().offer(1, record(A, B, 2, required_features=("tablets_v9",)))


def test_supported_features_decide_whether_a_reader_stops() -> None:
    value = record(A, B, 2, required_features=("tablets_v9",))
    for supported in (frozenset({"tablets_v9"}), frozenset[str]()):
        fold = Fold(supported=supported)
        created = (ClusterCreated("blue", "blue/1", "Murmur3Partitioner"),)
        assert fold.offer(0, record(bytes(16), A, 1, facts=created)) is not None
        if supported:
            assert fold.offer(1, value) is not None
            continue
        with pytest.raises(UnknownFeatureError, match="it needs tablets_v9"):
            fold.offer(1, value)


def test_winner_with_a_wrong_epoch_stops_the_reader() -> None:
    with pytest.raises(CorruptRecordError, match="it says epoch 4 where 2 follows"):
        begun().offer(1, record(A, B, 4))


def test_stopped_reader_keeps_its_image() -> None:
    fold = begun()
    before = fold.image
    with pytest.raises(LogError):
        fold.offer(1, b"junk")
    assert fold.image is before


def test_loser_of_an_unknown_schema_is_skipped() -> None:
    fold = begun()
    assert fold.offer(1, b"\xc3\x01" + bytes(8) + record(C, B, 2)[10:FROZEN_BYTES]) is None
    assert (fold.losers, fold.next_offset) == (1, 2)


def test_offset_hole_stops_a_fold_that_cannot_read_again() -> None:
    fold = begun()
    with pytest.raises(MissedRecordsError, match="offset 1 should follow"):
        fold.offer(2, record(A, B, 2))
    fold.chain.jump(2)
    assert fold.offer(2, record(A, B, 2)) is not None


def test_witness_of_another_history_stops_the_reader() -> None:
    for witness in ({"witness_epoch": 2}, {"witness_epoch": 1, "witness_state_id": C}):
        with pytest.raises(LostWinnersError, match="winners were lost"):
            begun().offer(1, record(C, B, 3, **witness))


def test_a_record_of_another_log_is_skipped_and_counted() -> None:
    fold = begun()
    assert fold.offer(1, record(A, B, 2, log_id=C, witness_epoch=7)) is None
    assert (fold.image.epoch, fold.chain.strays, fold.losers) == (1, 1, 0)
