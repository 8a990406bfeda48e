"""Restrictions of the log's commands: how they are set, answers to callers, and their part of the state."""

import pytest

from stele.domain.commands import Envelope, Noop, RestrictCommits, SetSetting
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.domain.model.commits import Commits
from stele.domain.names import CommitMode
from stele.domain.not_taken import restricted, restricted_text, takes_from
from stele.domain.snapshot import domain_hashes, facts_to_image, image_to_facts
from stele.domain.view import diff, view
from tests.domain.epochs import AT_MS
from tests.domain.history import History, three_nodes

FREEZE = RestrictCommits(mode=CommitMode.FROZEN)
THAW = RestrictCommits(mode=CommitMode.OPEN)


def asked(history: History, command: RestrictCommits, by: str = "ada", reason: str = "why") -> str:
    """Return the code of the rejection, or an empty string if it was applied."""
    request_id = f"restrict-{history.image.epoch}"
    envelope = Envelope(request_id=request_id, command=command, actor=by, reason=reason)
    rejection = history.submit(envelope)
    return "" if rejection is None else rejection.code


@pytest.fixture
def history() -> History:
    return three_nodes()[0]


def command_of(actor: str) -> Envelope:
    return Envelope(request_id="r", command=SetSetting("a", "b"), actor=actor)


def test_state_records_who_froze_the_log_when_and_why(history: History) -> None:
    assert asked(history, FREEZE, "ada", "moving the brokers") == ""
    epoch = history.image.epoch
    assert history.image.commits == Commits(
        mode=CommitMode.FROZEN,
        by="ada",
        reason="moving the brokers",
        since_epoch=epoch,
        since_ms=AT_MS,
    )
    shown = view(history.image)["commits"]
    assert (shown["mode"], shown["by"], shown["since_epoch"]) == ("frozen", "ada", epoch)
    changed = diff(history.images[-2], history.image)["commits"]
    assert changed["mode"] == {"before": "open", "after": "frozen"}
    again = facts_to_image(image_to_facts(history.image), epoch, history.image.state_id)
    assert again.commits == history.image.commits


def test_refused_caller_learns_who_froze_the_log_and_how_to_thaw_it(history: History) -> None:
    asked(history, FREEZE, "ada", "moving the brokers")
    why = restricted(history.image.commits, command_of("bob"))
    assert why is not None
    assert why.code == "frozen"
    assert why.message == (
        f"The log is frozen since epoch {history.image.epoch} (2023-11-14 22:13:20 UTC) by order of ada:"
        " moving the brokers. Nothing was decided."
    )
    assert "`stele log thaw`" in why.hint and "ask ada" in why.hint
    assert why.details["since_ms"] == str(AT_MS)


def test_frozen_log_accepts_only_changes_of_its_mode(history: History) -> None:
    asked(history, FREEZE)
    commits = history.image.commits
    for command in (FREEZE, THAW, RestrictCommits(mode=CommitMode.SINGLE_USER, actor="x")):
        assert restricted(commits, Envelope(request_id="r", command=command)) is None
    for other in (SetSetting("a", "b"), Noop()):
        assert restricted(commits, Envelope(request_id="r", command=other, actor="ada"))


def test_single_user_mode_compares_names_exactly(history: History) -> None:
    command = RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada")
    assert asked(history, command, by="bob") == ""
    commits = history.image.commits
    assert [takes_from(commits, name) for name in ("ada", "Ada", "ada ", "bob", "")] == [
        *(True, False, False, False, False)
    ]
    why = restricted(commits, command_of("bob"))
    assert why is not None and why.code == "single_user" and "'ada' alone" in why.message
    assert restricted(commits, command_of("ada")) is None


def test_thawed_log_equals_one_that_was_never_frozen(history: History) -> None:
    before = history.image
    asked(history, FREEZE)
    assert domain_hashes(history.image) != domain_hashes(before)
    assert asked(history, THAW, by="bob", reason="") == ""
    assert history.image.commits == EMPTY_FOR_FOLLOWERS.commits
    assert domain_hashes(history.image) == domain_hashes(before)
    (fact,) = history.epochs[-1].facts
    assert fact.commits.by == "bob"  # type: ignore[union-attr]
    assert restricted_text(history.image.commits) == ""
    assert asked(history, THAW) == "" and history.epochs[-1].facts == ()


def test_last_restriction_replaces_the_earlier_one(history: History) -> None:
    asked(history, FREEZE, "ada", "one")
    asked(history, FREEZE, "bob", "two")
    assert (history.image.commits.by, history.image.commits.reason) == ("bob", "two")


@pytest.mark.parametrize(
    ("command", "reason", "code"),
    [
        (FREEZE, "", "reason_missing"),
        (RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada"), "", "reason_missing"),
        (RestrictCommits(mode=CommitMode.SINGLE_USER), "why", "bad_actor"),
        (RestrictCommits(mode=CommitMode.FROZEN, actor="ada"), "why", "bad_actor"),
        (RestrictCommits(mode=CommitMode.SINGLE_USER, actor="a" * 4097), "why", "text_too_long"),
    ],
)
def test_incomplete_restriction_is_refused(
    history: History, command: RestrictCommits, reason: str, code: str
) -> None:
    assert asked(history, command, reason=reason) == code
