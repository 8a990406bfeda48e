"""Settings that the core uses are checked when they are set."""

import pytest

from stele.domain.commands import SetSetting
from stele.domain.model.features import SettingChanged
from stele.domain.model.requests import FINISHED
from stele.domain.request_memory import Young
from tests.domain.history import three_nodes

TIMED = "01890000-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    "value", ["0", "-1", "many", "1.5", "9" * 4301, str(FINISHED.most + 1), "\u0663"]
)
def test_invalid_finished_requests_setting_is_refused(value: str) -> None:
    history, _ = three_nodes()
    refused = history.apply(SetSetting("finished_requests", value))
    assert refused is not None
    assert refused.code == "bad_setting"
    assert "from 1 to" in refused.hint


@pytest.mark.parametrize("value", ["", "1", str(FINISHED.most)])
def test_valid_finished_requests_setting_is_accepted(value: str) -> None:
    assert three_nodes()[0].apply(SetSetting("finished_requests", value)) is None


def test_id_of_another_form_keeps_the_newest_time() -> None:
    """Otherwise the horizon would stay low, and a forgotten id could be decided again."""
    young = Young().with_decisions([TIMED], 1)
    assert young.newest_ms > 0
    assert young.with_decisions(["zzz"], 2).newest_ms == young.newest_ms


@pytest.mark.parametrize("name", ["progress_barrier_level", "progress_barrier_min_level"])
@pytest.mark.parametrize("value", ["LOCAL_QUORUM", "ONE", "NODE_LOCAL"])
def test_unsafe_level_needs_force_and_is_marked_in_the_history(name: str, value: str) -> None:
    history, _ = three_nodes()
    refused = history.apply(SetSetting(name, value))
    assert refused is not None and refused.code == "unsafe_setting"
    assert "may be lost" in refused.message and "force" in refused.hint
    assert history.apply(SetSetting(name, value, force=True)) is None
    assert history.epochs[-1].facts == (SettingChanged(name, value, unsafe=True),)


@pytest.mark.parametrize("value", ["ALL", "EACH_QUORUM", "QUORUM", ""])
def test_safe_level_needs_no_force_and_has_no_mark(value: str) -> None:
    history, _ = three_nodes()
    for force in (False, True):
        asked = SetSetting("progress_barrier_level", value, force=force)
        assert history.apply(asked) is None
        assert history.epochs[-1].facts == (SettingChanged("progress_barrier_level", value),)


def test_unknown_level_is_refused_with_the_known_levels() -> None:
    history, _ = three_nodes()
    refused = history.apply(SetSetting("progress_barrier_level", "quorum"))
    assert refused is not None and refused.code == "bad_setting"
    assert "ALL, EACH_QUORUM, QUORUM" in refused.hint
