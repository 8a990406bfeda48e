"""The archive begins where the settings allow it, a majority of members agrees, and no reader needs more."""

from hashlib import sha256
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stele.domain.commands import (
    AgreeToTrim,
    AnnounceReader,
    AnnounceSnapshot,
    AnyCommand,
    ForgetReader,
    ForgetReplica,
    ProposeTrim,
    SetSetting,
    TrimArchive,
)
from stele.domain.model.archive import PROPOSAL_LASTS_S, READER_LOST_AFTER_S, UPKEEP, ArchiveTrimmed
from stele.domain.rules.retention import Point, to_propose, trimming
from stele.domain.snapshot import facts_to_image, image_to_facts
from tests.domain.archive.announced import replica, snapshot, truncate
from tests.domain.archive.logs import (
    DAY_MS,
    agree,
    archive,
    pass_epochs,
    refusal,
    took,
    with_members,
)
from tests.domain.epochs import History

STORE = "s3://bucket/stele"
THREE = ("c-1", "c-2", "c-3")


def hash_of(epoch: int, content: str = "right") -> str:
    return sha256(f"{content} {epoch}".encode()).hexdigest()


def propose(history: History, epoch: int, replica_id: str = "c-1") -> ProposeTrim:
    state_id = history.images[epoch].state_id.hex()
    return ProposeTrim(replica_id=replica_id, epoch=epoch, state_id=state_id)


def agrees(replica_id: str, epoch: int, content: str = "right", store: str = "") -> AgreeToTrim:
    found = hash_of(epoch, content)
    return AgreeToTrim(replica_id=replica_id, epoch=epoch, hash=found, store=store)


def truncated(*names: str, keep: dict[str, str] | None = None) -> tuple[History, int]:
    """Return a truncated log and its first epoch. The archive may be trimmed to that epoch as well."""
    history = with_members(*(names or THREE))
    history.enable(UPKEEP)
    for name, value in ({"archive_keep_epochs": "3"} if keep is None else keep).items():
        took(history, SetSetting(name, value))
    agree(history, *(names or THREE))
    epoch = agree(history, *(names or THREE))
    took(history, truncate(epoch))
    pass_epochs(history)
    return history, epoch


def why_not(history: History, command: AnyCommand) -> str:
    refused = refusal(history, command)
    assert refused.hint
    return refused.message


def test_trim_needs_the_agreement_of_a_majority() -> None:
    history, epoch = truncated()
    took(history, propose(history, epoch), agrees("c-1", epoch, store=STORE))
    assert "2 of the 3 members" in why_not(history, TrimArchive(epoch))
    took(history, agrees("c-3", epoch), TrimArchive(epoch))
    assert history.epochs[-1].facts == (
        ArchiveTrimmed(
            epoch=epoch,
            state_id=history.images[epoch].state_id.hex(),
            hash=hash_of(epoch),
            members=("c-1", "c-3"),
            stores=(STORE,),
        ),
    )
    assert archive(history).trimmed_epoch == epoch
    assert archive(history).proposed is None
    assert not archive(history).agreed


@pytest.mark.parametrize(
    ("found", "store"),
    [("", ""), ("xyz", ""), ("A" * 64, ""), ("a" * 64, "s" * 5000), ("a" * 64, "file:///a\n")],
)
def test_vote_with_an_invalid_hash_or_store_is_refused(found: str, store: str) -> None:
    history, epoch = truncated()
    took(history, propose(history, epoch))
    vote = AgreeToTrim(replica_id="c-1", epoch=epoch, hash=found, store=store)
    assert refusal(history, vote).code == "bad_snapshot"
    assert not archive(history).agreed


def test_announcements_after_a_trim_begin_at_the_trimmed_epoch() -> None:
    """This holds for later announcements as well, which were in flight."""
    history, epoch = truncated()
    took(history, propose(history, epoch), *(agrees(name, epoch) for name in THREE))
    took(history, TrimArchive(epoch))
    for name in THREE:
        assert {s.first_epoch for s in archive(history).announced(name)} == {epoch}
    newer = pass_epochs(history)
    took(history, snapshot("c-1", newer))
    assert archive(history).announced("c-1")[-1].first_epoch == epoch


@pytest.mark.parametrize("content", ["right", "wrong"])
def test_votes_for_another_snapshot_do_not_count(content: str) -> None:
    history, epoch = truncated()
    took(history, propose(history, epoch))
    took(
        history, agrees("c-1", epoch), agrees("c-2", epoch, content), agrees("c-3", epoch, "other")
    )
    if content == "right":
        took(history, TrimArchive(epoch))
    else:
        assert "2 of the 3 members" in why_not(history, TrimArchive(epoch))


def test_votes_of_candidates_and_of_emptied_folders_do_not_count() -> None:
    history, epoch = truncated()
    took(history, replica("c-4"), propose(history, epoch))
    took(history, agrees("c-4", epoch), agrees("c-1", epoch), agrees("c-2", epoch))
    took(history, replica("c-2", rack="c-2", folder="another"))
    assert "2 of the 3 members" in why_not(history, TrimArchive(epoch))
    assert refusal(history, propose(history, epoch, "c-4")).code == "not_a_member"
    assert refusal(history, agrees("c-2", epoch)).code == "another_folder"
    took(history, ForgetReplica(replica_id="c-4"))
    assert {*archive(history).agreed} == {"c-1"}


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ({}, "for ever"),
        ({"archive_keep_epochs": "1000"}, "newest 1000 epochs"),
        ({"archive_keep_days": "1"}, "last 1 days"),
        ({"archive_keep_days": "1", "archive_keep_epochs": "3"}, "last 1 days"),
    ],
)
def test_trim_refuses_to_delete_epochs_that_the_settings_keep(
    keep: dict[str, str], why: str
) -> None:
    history, epoch = truncated(keep=keep)
    assert why in why_not(history, propose(history, epoch))


def test_archive_keep_days_uses_the_time_of_the_log() -> None:
    history, epoch = truncated(keep={"archive_keep_days": "2"})
    history.at_ms += 2 * DAY_MS
    pass_epochs(history, 1)
    took(history, propose(history, epoch))


def test_settings_are_checked_again_at_the_trim() -> None:
    history, epoch = truncated("c-1")
    took(history, propose(history, epoch), agrees("c-1", epoch))
    took(history, SetSetting("archive_keep_epochs", "500"))
    assert "newest 500" in why_not(history, TrimArchive(epoch))


def test_trim_goes_no_further_than_the_start_of_the_log() -> None:
    history, epoch = truncated()
    pass_epochs(history)
    assert "log itself begins" in why_not(history, propose(history, epoch + 1))


def test_slow_reader_blocks_a_trim_until_it_is_lost() -> None:
    history, epoch = truncated("c-1")
    took(history, AnnounceReader("spark", epoch - 1))
    assert "reader spark" in why_not(history, propose(history, epoch))
    history.at_ms += 1000 * READER_LOST_AFTER_S.default + 1000
    pass_epochs(history, 1)
    took(history, propose(history, epoch), agrees("c-1", epoch), TrimArchive(epoch))
    (fact,) = history.epochs[-1].facts
    assert isinstance(fact, ArchiveTrimmed)
    assert fact.lost_readers == ("spark",)


def test_proposal_expires_after_an_hour() -> None:
    """Members that must fold first get enough time. Proposals without agreement expire."""
    history, epoch = truncated()
    took(history, propose(history, epoch - 1))
    assert refusal(history, propose(history, epoch)).code == "already_proposed"
    history.at_ms += 1000 * PROPOSAL_LASTS_S + 1000
    pass_epochs(history, 1)
    took(history, agrees("c-1", epoch - 1), propose(history, epoch))
    assert not archive(history).agreed
    assert refusal(history, agrees("c-2", epoch - 1)).code == "not_proposed"


def test_trim_without_the_feature_is_refused() -> None:
    """Older builds could not read the fact."""
    history = with_members("c-1")
    took(history, SetSetting("archive_keep_epochs", "1"))
    epoch = agree(history, "c-1")
    took(history, truncate(epoch))
    pass_epochs(history)
    assert "stele features enable" in why_not(history, propose(history, epoch))
    assert UPKEEP in trimming(history.image, history.at_ms).why_not


def test_newest_snapshot_that_is_old_enough_is_proposed() -> None:
    history, epoch = truncated()
    points = [Point(e, history.images[e].state_id) for e in range(1, history.image.epoch + 1)]
    found = to_propose(history.image, points, history.at_ms)
    assert found == Point(epoch, history.images[epoch].state_id)
    took(history, propose(history, epoch))
    assert to_propose(history.image, points, history.at_ms) is None


def test_metadata_snapshot_keeps_proposals_and_votes() -> None:
    history, epoch = truncated()
    took(history, propose(history, epoch), agrees("c-1", epoch), agrees("c-2", epoch))
    for _ in range(2):
        image = history.image
        again = facts_to_image(image_to_facts(image), image.epoch, image.state_id)
        assert again.archive == image.archive
        took(history, *([TrimArchive(epoch)] if image.archive.proposed else []))


Said = TypeVar("Said", AgreeToTrim, AnnounceSnapshot)
NAMES = st.sampled_from([*THREE, "c-4", "nobody"])
EPOCHS = st.integers(1, 40)
COMMANDS: list[st.SearchStrategy[Any]] = [
    st.tuples(st.just("propose"), EPOCHS, NAMES),
    st.tuples(st.just("agree"), NAMES, st.sampled_from(["right", "right", "wrong"])),
    st.tuples(st.just("all agree"), st.sampled_from(["right", "wrong"])),
    st.tuples(st.just("trim")),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("pass"), st.integers(1, 5), st.sampled_from([0, 0, DAY_MS, 8 * DAY_MS])),
    st.tuples(st.just("keep"), st.sampled_from(["days", "epochs"]), st.integers(0, 12)),
    st.tuples(st.just("read"), EPOCHS),
    st.tuples(st.just("stop reading")),
    st.tuples(st.just("empty"), NAMES),
    st.tuples(st.just("forget"), NAMES),
]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(COMMANDS), max_size=30))
def test_random_commands_never_trim_needed_epochs(steps: list[tuple[Any, ...]]) -> None:
    """``check_archive`` checks every epoch."""
    history, _ = truncated()
    for step in steps:
        for command in commands_of(history, step):
            history.apply(command)


def in_its_folder(history: History, said: Said) -> Said:
    """Return the command with the folder id that the replica itself would send."""
    known = archive(history).replicas.get(said.replica_id)
    return replace(said, folder_id="" if known is None else known.folder_id)


def commands_of(history: History, step: tuple[Any, ...]) -> list[AnyCommand]:
    proposed = archive(history).proposed
    epoch = proposed.epoch if proposed is not None else archive(history).truncated_epoch
    match step:
        case "propose", at, name:
            return [propose(history, min(at, history.image.epoch), name)]
        case "agree", name, content:
            return [in_its_folder(history, agrees(name, epoch, content))]
        case "all agree", content:
            votes = (agrees(name, epoch, content) for name in THREE)
            return [in_its_folder(history, vote) for vote in votes]
        case ("trim",):
            return [TrimArchive(epoch)]
        case ("truncate",):
            at = pass_epochs(history)
            members = archive(history).members()
            said = (in_its_folder(history, snapshot(name, at)) for name in members)
            return [*said, truncate(at)]
        case "pass", count, later_ms:
            history.at_ms += later_ms
            pass_epochs(history, count)
            return []
        case "keep", what, value:
            return [SetSetting(f"archive_keep_{what}", str(value))]
        case "read", at:
            return [AnnounceReader("spark", min(at, history.image.epoch))]
        case ("stop reading",):
            return [ForgetReader("spark")]
        case "empty", name:
            return [replica(name, folder=f"folder-{history.image.epoch}")] if name in THREE else []
        case "forget", name:
            return [ForgetReplica(replica_id=name)]
    raise AssertionError(step)
