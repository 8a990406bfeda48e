"""The frozen bytes and the winner rule, over raw bytes."""

import pytest

from stele.domain.commands import FoundCluster, SetSetting, command_digest
from stele.domain.facts import Epoch
from stele.log import chain as rule
from stele.log.chain import FROZEN_BYTES, KEPT_STATES, Chain, Verdict, digest_of
from stele.log.codec import encode_epoch

LOG, OTHER = bytes([9] * 16), bytes([8] * 16)


def state(number: int) -> bytes:
    return number.to_bytes(16)


def record(previous: int, own: int, epoch: int, witness: int = 0, log: bytes = LOG) -> bytes:
    return encode_epoch(
        Epoch(
            prev_state_id=state(previous),
            state_id=state(own),
            log_id=log,
            witness_state_id=state(witness),
            epoch=epoch,
            witness_epoch=witness,
            request_id="r",
            command="noop",
            facts=(),
        )
    )


def founded() -> Chain:
    chain = Chain()
    assert chain.offer(0, record(0, 1, 1)) is Verdict.WINNER
    return chain


def test_frozen_bytes_have_fixed_positions() -> None:
    value = record(3, 4, 0x0102030405060708, witness=5)
    assert FROZEN_BYTES == 90
    assert value[10:26] == state(3)
    assert value[26:42] == state(4)
    assert value[42:58] == LOG
    assert value[58:74] == state(5)
    assert value[74:82] == bytes([1, 2, 3, 4, 5, 6, 7, 8])
    assert value[82:90] == (5).to_bytes(8)


def test_verdicts_need_only_the_frozen_bytes() -> None:
    whole, cut = Chain(), Chain()
    values = [record(0, 1, 1), record(1, 2, 2, 1), record(1, 3, 2, 1), record(2, 4, 3, 2, OTHER)]
    found = [(whole.offer(n, v), cut.offer(n, v[:FROZEN_BYTES])) for n, v in enumerate(values)]
    expected = [Verdict.WINNER, Verdict.WINNER, Verdict.LOSER, Verdict.STRAY]
    assert found == [(verdict, verdict) for verdict in expected]
    assert (whole.epoch, whole.losers, whole.strays) == (2, 1, 1)


def test_empty_log_is_founded_only_by_a_record_with_a_log_id() -> None:
    chain = Chain()
    assert chain.offer(0, record(0, 1, 1, log=bytes(16))) is Verdict.STRAY
    assert chain.offer(1, record(0, 1, 1)) is Verdict.WINNER
    assert chain.log_id == LOG


def test_later_epoch_cannot_found_a_log() -> None:
    chain = Chain()
    for value in (record(7, 8, 4, log=OTHER), record(0, 8, 2, log=bytes(16))):
        assert chain.offer(0, value) is Verdict.NO_BEGINNING
        assert (chain.epoch, chain.next_offset) == (0, 0)


def test_suspicious_records_do_not_move_the_chain() -> None:
    chain = founded()
    assert chain.offer(3, record(1, 2, 2, 1)) is Verdict.HOLE
    assert chain.offer(0, record(0, 1, 1)) is Verdict.HOLE
    assert chain.offer(1, record(1, 2, 3, 2)) is Verdict.LOST_WINNERS
    assert (chain.epoch, chain.next_offset) == (1, 1)


def test_witness_older_than_the_kept_states_proves_nothing() -> None:
    resumed = Chain(LOG, 10, state(10), 40)
    assert resumed.offer(40, record(10, 11, 11, witness=3)) is Verdict.WINNER
    assert resumed.state_id_of(9) is None
    assert resumed.state_id_of(10) == state(10)


def test_witness_of_a_future_epoch_means_lost_winners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """State ids are kept in a ring buffer, where a future epoch has the slot of an older one."""
    monkeypatch.setattr(rule, "KEPT_STATES", 2)
    chain = founded()
    assert chain.offer(1, record(1, 2, 2, 1)) is Verdict.WINNER
    later = bytearray(record(2, 3, 3, witness=2))
    later[82:90] = (4).to_bytes(8)
    assert chain.judge(2, bytes(later)) is Verdict.LOST_WINNERS
    assert chain.judge(2, record(2, 3, 3, witness=2)) is Verdict.WINNER


def test_the_state_ids_of_the_last_epochs_are_kept() -> None:
    chain = Chain(LOG, 1, state(1), 1)
    head, tail = record(1, 2, 2)[:10], bytes(8)
    for epoch in range(2, KEPT_STATES + 12):
        number = epoch.to_bytes(8)
        chain.win(epoch, head + state(epoch - 1) + state(epoch) + LOG + state(0) + number + tail)
    newest = KEPT_STATES + 11
    assert chain.epoch == newest
    assert chain.state_id_of(newest) == state(newest)
    assert chain.state_id_of(newest + 1) is None
    assert chain.state_id_of(12) == state(12)
    assert chain.state_id_of(11) is None
    assert len(chain._kept) == KEPT_STATES * rule.STATE_BYTES


def test_the_anchor_is_the_last_winner() -> None:
    chain = founded()
    chain.offer(1, record(0, 2, 1))
    anchor = chain.anchor
    assert anchor is not None
    assert (anchor.offset, anchor.digest) == (0, digest_of(record(0, 1, 1)))


def test_equal_commands_have_equal_digests() -> None:
    assert command_digest(SetSetting("a", "b")) == command_digest(SetSetting("a", "b"))
    assert command_digest(SetSetting("a", "b")) != command_digest(SetSetting("a", "c"))
    assert command_digest(FoundCluster()) != command_digest(SetSetting("a", "b"))
    assert len(command_digest(FoundCluster())) == 16
