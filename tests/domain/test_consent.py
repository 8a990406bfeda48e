"""The caller names the epochs that a recovery gives up."""

import pytest

from stele.domain.recovery import Absent, HistoryChoice, missed, unagreed

ONE, TWO = (
    Absent("cu-1", "http://one:7100", "It begins anew."),
    Absent("", "http://two:7100", "refused"),
)


def chosen(known_epoch: int = 9, ahead: tuple[str, ...] = ()) -> HistoryChoice:
    return HistoryChoice(
        source="cu-3",
        epoch=9,
        state_id=b"9" * 16,
        known_epoch=known_epoch,
        shared=("cu-3",),
        ahead=ahead,
        apart=(),
        unproven=(),
    )


@pytest.mark.parametrize("name", ["cu-1", "http://one:7100", "cu-1 (http://one:7100)"])
def test_absent_replica_is_accepted_by_id_address_or_both(name: str) -> None:
    assert missed([ONE, TWO], [name]) == (TWO,)


@pytest.mark.parametrize("name", ["", "cu", "http://one:710", "cu-2"])
def test_absent_replica_is_not_accepted_by_another_name(name: str) -> None:
    assert missed([ONE, TWO], [name]) == (ONE, TWO)


def test_complete_recovery_needs_no_consent() -> None:
    assert unagreed(chosen(), (), (), None) is None
    assert unagreed(chosen(), [ONE, TWO], ["cu-1", TWO.url], None) is None
    assert unagreed(chosen(12), (), (), 9) is None


def test_each_silent_replica_is_named_with_the_option_to_type() -> None:
    refused = unagreed(chosen(), [ONE, TWO], ["cu-1"], None)
    assert refused is not None
    assert refused.message.startswith("http://two:7100 does not report what it holds (refused): ")
    assert "--without http://two:7100." in refused.hint and "cu-1" not in refused.hint
    both = unagreed(chosen(), [ONE, TWO], (), None)
    assert both is not None
    assert both.message == (
        "cu-1 (http://one:7100), http://two:7100 do not report what they hold (It begins anew; refused): epochs"
        " that they alone have would be given up."
    )
    assert "--without cu-1 --without http://two:7100." in both.hint


@pytest.mark.parametrize("lose_after", [None, 0, 8, 10, 12])
def test_known_epochs_are_given_up_only_with_the_exact_lose_after(
    lose_after: int | None,
) -> None:
    refused = unagreed(chosen(12, ("n1", "n2")), [ONE], (), lose_after)
    assert refused is not None
    assert "Epochs 10 to 12, known to n1, n2, would be" in refused.message
    assert refused.hint.endswith("say --lose-after 9.")
    assert "--without cu-1" in refused.hint, "all is said at one time"


def test_long_list_of_processes_is_shortened() -> None:
    refused = unagreed(chosen(10, tuple(f"n{number}" for number in range(50))), (), (), None)
    assert refused is not None
    assert "n4, others" in refused.message and "n5" not in refused.message
