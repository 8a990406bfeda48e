"""A replica with other snapshots than the members' reports it, and its content counts no more."""

from stele.domain.archive.decide import is_told, to_admit, unreliable
from stele.domain.archive.model import UPKEEP, ReplicaDiverged, SnapshotsForgotten
from stele.domain.commands import AdmitDivergence, ForgetReplica
from stele.domain.snapshot import facts_to_image, image_to_facts
from tests.domain.archive.announced import replica, snapshot
from tests.domain.archive.logs import agree, archive, pass_epochs, refusal, took, with_members
from tests.domain.epochs import History


def with_one_that_differs() -> tuple[History, int]:
    history = with_members("c-1", "c-2", "c-3")
    history.enable(UPKEEP)
    epoch = agree(history, "c-1", "c-2")
    took(history, snapshot("c-3", epoch, content="other"))
    return history, epoch


def admit(replica_id: str, epoch: int, folder: str = "") -> AdmitDivergence:
    return AdmitDivergence(replica_id=replica_id, epoch=epoch, folder_id=folder)


def test_it_says_so_once_for_a_folder_and_has_nothing() -> None:
    history, epoch = with_one_that_differs()
    assert to_admit(history.image, "c-3") == epoch
    took(history, admit("c-3", epoch))
    assert history.epochs[-1].facts == (
        ReplicaDiverged(replica_id="c-3", epoch=epoch, folder_id="", times=1),
        SnapshotsForgotten("c-3", (epoch,)),
    )
    assert is_told(archive(history), "c-3", "")
    assert not is_told(archive(history), "c-3", "another")
    assert to_admit(history.image, "c-3") == 0
    took(history, admit("c-3", epoch))
    assert not history.epochs[-1].facts


def test_who_agrees_has_not_diverged_and_of_two_neither() -> None:
    history, epoch = with_one_that_differs()
    assert refusal(history, admit("c-1", epoch)).code == "not_diverged"
    two = with_members("c-1", "c-2")
    two.enable(UPKEEP)
    both = agree(two, "c-1")
    took(two, snapshot("c-2", both, content="other"))
    assert to_admit(two.image, "c-2") == 0
    assert refusal(two, admit("c-2", both)).code == "not_diverged"


def test_who_has_diverged_again_is_to_be_replaced_until_it_is_forgotten() -> None:
    history, epoch = with_one_that_differs()
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


def test_without_the_feature_it_is_only_shown() -> None:
    history = with_members("c-1", "c-2", "c-3")
    epoch = agree(history, "c-1", "c-2")
    took(history, snapshot("c-3", epoch, content="other"))
    pass_epochs(history)
    assert to_admit(history.image, "c-3") == 0
    assert refusal(history, admit("c-3", epoch)).code == "feature_not_enabled"
