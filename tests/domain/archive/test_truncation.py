"""The log is truncated behind the snapshots of a majority of the members and behind all readers."""

import msgspec
import pytest

from stele.domain.commands import AnnounceReader, ForgetReader, SetSetting, TruncateLog
from stele.domain.model.archive import MAX_READERS, READER_LOST_AFTER_S, LogTruncated
from stele.domain.rules.retention import truncatable
from tests.domain.archive.announced import offset_of, replica, snapshot, truncate
from tests.domain.archive.logs import (
    agree,
    archive,
    founded,
    pass_epochs,
    refusal,
    took,
    with_members,
)
from tests.domain.epochs import LOG_ID, History

LOST_MS = 1000 * READER_LOST_AFTER_S.default


def outlook(history: History) -> tuple[int, str]:
    found = truncatable(history.image, history.at_ms)
    assert found.offset == offset_of(found.epoch)
    return found.epoch, found.why_not_more


def test_truncation_fact_names_the_snapshot_and_its_members() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-3")
    took(history, truncate(epoch))
    assert history.epochs[-1].facts == (
        LogTruncated(
            epoch=epoch,
            offset=offset_of(epoch),
            log_id=LOG_ID.hex(),
            hash=snapshot("c-1", epoch).hash,
            members=("c-1", "c-3"),
        ),
    )
    assert archive(history).truncated_epoch == epoch


def test_truncation_keeps_truncate_behind_snapshots() -> None:
    history = with_members("c-1")
    one, two, three = (agree(history, "c-1") for _ in range(3))
    assert outlook(history)[0] == two
    took(history, SetSetting("truncate_behind", "3"))
    assert outlook(history)[0] == one
    took(history, SetSetting("truncate_behind", "1"))
    assert outlook(history)[0] == three
    took(history, SetSetting("truncate_behind", "4"))
    assert outlook(history) == (
        0,
        "the log keeps what follows the newest 4 snapshots that 1 of the 1 members have alike, and of these"
        " there are 3; `stele log snapshot` has one more taken",
    )


def test_truncation_names_members_without_announcements() -> None:
    history = with_members("c-1", "c-2", "c-3")
    agree(history, "c-1")
    assert outlook(history)[1].endswith(
        "there are 0; c-2, c-3 announced none; `stele log snapshot` has one more taken"
    )
    assert outlook(founded()) == (0, "no catch-up replica is a member")


def test_repeated_or_older_truncation_is_refused() -> None:
    history = with_members("c-1")
    one, two = agree(history, "c-1"), agree(history, "c-1")
    took(history, truncate(two))
    assert refusal(history, truncate(one)).code == "already_truncated"
    assert refusal(history, truncate(two)).code == "already_truncated"
    assert outlook(history)[0] == 0


@pytest.mark.parametrize("change", [{"epoch": 1}, {"offset": 1}, {"epoch": -1}, {"offset": 2**99}])
def test_truncation_needs_the_epoch_and_offset_of_an_agreed_snapshot(
    change: dict[str, int],
) -> None:
    history = with_members("c-1")
    epoch = agree(history, "c-1")
    asked = {"epoch": epoch, "offset": offset_of(epoch)} | change
    refused = refusal(history, TruncateLog(**asked))
    assert (
        refused.code == "no_majority" and f"{epoch} at offset {offset_of(epoch)}" in refused.message
    )


def test_half_of_the_members_is_no_majority() -> None:
    history = with_members("c-1", "c-2", "c-3", "c-4")
    epoch = agree(history, "c-1", "c-2")
    assert refusal(history, truncate(epoch)).code == "no_majority"
    assert outlook(history)[0] == 0


def test_candidates_do_not_count_for_a_truncation() -> None:

    history = with_members("c-1", "c-2", "c-3")
    took(history, replica("c-4"), replica("c-5"))
    epoch = agree(history, "c-1", "c-4", "c-5")
    assert refusal(history, truncate(epoch)).code == "no_majority"


def test_member_that_lacks_deleted_epochs_does_not_count() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1")
    took(history, snapshot("c-2", epoch, first_epoch=2))
    assert refusal(history, truncate(epoch)).code == "no_majority"
    took(history, snapshot("c-3", epoch), truncate(epoch))
    following = agree(history, "c-2", "c-3", first_epoch=epoch)
    took(history, truncate(following))


def test_snapshot_of_the_previous_log_does_not_count() -> None:
    """Its offset belongs to another topic."""

    history = with_members("c-1")
    agree(history, "c-1")
    epoch = agree(history, "c-1")
    founding = msgspec.structs.replace(history.image.founding, log_id=bytes(15) + b"\1")
    history.images.append(msgspec.structs.replace(history.image, founding=founding))
    assert outlook(history)[0] == 0
    assert refusal(history, truncate(epoch)).code == "no_majority"


# Readers.


def test_slow_reader_blocks_a_truncation() -> None:
    history = with_members("c-1", truncate_behind="1")
    epoch = agree(history, "c-1")
    took(history, AnnounceReader("spark", epoch - 1))
    assert outlook(history) == (0, f"reader spark is at epoch {epoch - 1}")
    refused = refusal(history, truncate(epoch))
    assert refused.code == "readers_behind" and "spark" in refused.message
    took(history, AnnounceReader("spark", epoch))
    assert outlook(history)[0] == epoch
    took(history, truncate(epoch))


def test_truncation_goes_as_far_as_the_slowest_reader() -> None:
    history = with_members("c-1", truncate_behind="1")
    one, two = agree(history, "c-1"), agree(history, "c-1")
    took(history, AnnounceReader("slow", one), AnnounceReader("quick", two))
    assert outlook(history) == (one, f"reader slow is at epoch {one}")


def test_reader_without_progress_is_lost_and_recorded() -> None:
    history = with_members("c-1", truncate_behind="1")
    took(history, AnnounceReader("spark", 1))
    epoch = agree(history, "c-1")
    history.at_ms += LOST_MS
    assert outlook(history)[0] == 0
    history.at_ms += 1
    assert truncatable(history.image, history.at_ms).lost_readers == ("spark",)
    took(history, truncate(epoch))
    (fact,) = history.epochs[-1].facts
    assert isinstance(fact, LogTruncated) and fact.lost_readers == ("spark",)


def test_reader_of_an_idle_log_is_not_lost() -> None:
    """The reader had read everything before many records were written at once."""
    history = with_members("c-1", truncate_behind="1")
    took(history, AnnounceReader("spark", history.image.epoch))
    history.at_ms += 10 * LOST_MS
    epoch = agree(history, "c-1")
    history.at_ms += LOST_MS
    assert refusal(history, truncate(epoch)).code == "readers_behind"


def test_repeated_announcement_is_no_progress_of_a_reader() -> None:
    history = with_members("c-1", truncate_behind="1")
    took(history, AnnounceReader("spark", 1))
    epoch = agree(history, "c-1")
    history.at_ms += LOST_MS + 1
    took(history, AnnounceReader("spark", 1))
    assert history.epochs[-1].facts == ()
    took(history, truncate(epoch))


def test_reader_that_went_back_counts_at_its_older_epoch() -> None:
    history = with_members("c-1", truncate_behind="1")
    epoch = agree(history, "c-1")
    took(history, AnnounceReader("spark", epoch), AnnounceReader("spark", 2))
    assert outlook(history)[0] == 0


def test_forgotten_reader_does_not_block_a_truncation() -> None:
    history = with_members("c-1", truncate_behind="1")
    took(history, AnnounceReader("spark", 1))
    epoch = agree(history, "c-1")
    took(history, ForgetReader("spark"), truncate(epoch))
    assert refusal(history, ForgetReader("spark")).code == "unknown_reader"


def test_invalid_reader_announcement_is_refused() -> None:
    history = with_members("c-1")
    assert refusal(history, AnnounceReader("a b", 1)).code == "bad_name"
    assert refusal(history, AnnounceReader("spark", 10_000)).code == "no_such_epoch"
    took(history, *(AnnounceReader(f"r{index}", 1) for index in range(MAX_READERS)))
    assert refusal(history, AnnounceReader("more", 1)).code == "too_many_readers"
    took(history, AnnounceReader("r1", pass_epochs(history)))
