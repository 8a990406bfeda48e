"""The checker of decisions in parts uses the epochs before a commit instead of the staged image."""

import pytest

from stele.domain.evolve import apply_facts, evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.model.features import SettingChanged
from stele.domain.staging import Part, PartsCommitted, StagedFact
from stele_simulator.part_checks import PartChecks, check_size, is_too_large
from stele_simulator.violation import Violation

ONE = SettingChanged("one", "1")
TWO = SettingChanged("two", "2")


def _part(index: int, fact: StagedFact, staging_id: str = "s") -> Part:
    return Part(staging_id, index, (fact,))


def _after(image: Image, *facts: AnyFact, request_id: str = "") -> Epoch:
    return Epoch(
        prev_state_id=image.state_id,
        state_id=bytes([image.epoch + 1]) * 16,
        epoch=image.epoch + 1,
        request_id=request_id,
        command="set_setting",
        facts=facts,
    )


def _checked(checks: PartChecks, image: Image, *facts: AnyFact) -> Image:
    epoch = _after(image, *facts)
    after = evolve(image, epoch)
    checks.check(image, after, epoch)
    checks.follow(epoch)
    return after


def test_parts_and_their_commit_equal_the_decision() -> None:
    checks = PartChecks()
    image = _checked(checks, _checked(checks, EMPTY, _part(0, ONE)), _part(1, TWO))
    commit = _after(image, PartsCommitted("s", 2), SettingChanged("three", "3"))
    assert checks.decided(commit) == (ONE, TWO, SettingChanged("three", "3"))
    checks.check(image, evolve(image, commit), commit)


def test_part_without_its_commit_must_change_nothing() -> None:
    epoch = _after(EMPTY, _part(0, ONE))
    with pytest.raises(Violation, match="features changed"):
        PartChecks().check(EMPTY, apply_facts(evolve(EMPTY, epoch), (ONE,)), epoch)


def test_commit_may_apply_only_its_own_parts() -> None:
    checks = PartChecks()
    image = _checked(checks, EMPTY, _part(0, ONE))
    commit = _after(image, PartsCommitted("s", 1))
    with pytest.raises(Violation, match="features would be otherwise"):
        checks.check(image, apply_facts(evolve(image, commit), (TWO,)), commit)


def test_parts_and_their_commit_must_be_consecutive() -> None:
    checks = PartChecks()
    image = _checked(checks, _checked(checks, EMPTY, _part(0, ONE)), TWO)
    with pytest.raises(Violation, match="follows the 1 parts that it commits"):
        checks.decided(_after(image, PartsCommitted("s", 1)))


def test_record_of_a_command_must_fit_the_size_limit() -> None:
    check_size(_after(EMPTY, ONE), 5001, 5000)
    with pytest.raises(Violation, match="has 5001"):
        check_size(_after(EMPTY, ONE, request_id="r"), 5001, 5000)
    assert is_too_large((ONE, SettingChanged("large", "x" * 5000)), 5000)
    assert not is_too_large((ONE, *(SettingChanged("s", "x" * 900),) * 6), 5000)
