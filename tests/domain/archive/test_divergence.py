"""A replica whose snapshots differ from those of the members reports it, and its content no longer counts."""

from stele.domain.commands import AdmitDivergence, ForgetReplica
from stele.domain.model.archive import UPKEEP, ReplicaDiverged, SnapshotsForgotten
from stele.domain.rules.archive import has_admitted_divergence, to_admit, unreliable
from stele.domain.snapshot import facts_to_image, image_to_facts
from tests.domain.archive.announced import replica, snapshot
from tests.domain.archive.logs import agree, archive, pass_epochs, refusal, took, with_members
from tests.domain.epochs import History


def with_one_diverged() -> tuple[History, int]:
    history = with_members("c-1", "c-2", "c-3")
    history.enable(UPKEEP)
    epoch = agree(history, "c-1", "c-2")
    took(history, snapshot("c-3", epoch, content="other"))
    return history, epoch


def admit(replica_id: str, epoch: int, folder: str = "") -> AdmitDivergence:
    return AdmitDivergence(replica_id=replica_id, epoch=epoch, folder_id=folder)


def test_divergence_is_admitted_once_per_folder_and_drops_snapshots() -> None:
    history, epoch = with_one_diverged()
    assert to_admit(history.image, "c-3") == epoch
    took(history, admit("c-3", epoch))
    assert history.epochs[-1].facts == (
        ReplicaDiverged(replica_id="c-3", epoch=epoch, folder_id="", times=1),
        SnapshotsForgotten("c-3", (epoch,)),
    )
    assert has_admitted_divergence(archive(history), "c-3", "")
    assert not has_admitted_divergence(archive(history), "c-3", "another")
    assert to_admit(history.image, "c-3") == 0
    took(history, admit("c-3", epoch))
    assert not history.epochs[-1].facts


def test_replica_that_agrees_or_is_one_of_two_cannot_admit_divergence() -> None:
    history, epoch = with_one_diverged()
    assert refusal(history, admit("c-1", epoch)).code == "not_diverged"
    two = with_members("c-1", "c-2")
    two.enable(UPKEEP)
    both = agree(two, "c-1")
    took(two, snapshot("c-2", both, content="other"))
    assert to_admit(two.image, "c-2") == 0
    assert refusal(two, admit("c-2", both)).code == "not_diverged"


def test_second_divergence_marks_a_replica_as_unreliable() -> None:
    history, epoch = with_one_diverged()
    took(history, admit("c-3", epoch), replica("c-3", rack="c-3", folder="second"))
    assert unreliable(archive(history)) == set()
    again = agree(history, "c-1", "c-2")
    took(history, snapshot("c-3", again, content="other", folder="second"))
    assert refusal(history, admit("c-3", again)).code == "another_folder"
    took(history, admit("c-3", again, "second"))
    assert unreliable(archive(history)) == {"c-3"}
    image = history.image
    assert (
        facts_to_image(image_to_facts(image), image.epoch, image.state_id).archive == image.archive
    )
    took(history, ForgetReplica(replica_id="c-3"))
    assert unreliable(archive(history)) == set()


def test_divergence_is_only_shown_before_the_feature_is_enabled() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-2")
    took(history, snapshot("c-3", epoch, content="other"))
    pass_epochs(history)
    assert to_admit(history.image, "c-3") == 0
    assert refusal(history, admit("c-3", epoch)).code == "feature_not_enabled"
