"""Settings whose value means something to the core are checked when they are set."""

import pytest

from stele.domain.commands import SetSetting
from stele.domain.requests.memory import Young
from stele.domain.requests.rows import FINISHED
from tests.domain.history import three_nodes

TIMED = "01890000-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    "value", ["0", "-1", "many", "1.5", "9" * 4301, str(FINISHED.most + 1), "\u0663"]
)
def test_a_number_of_finished_requests_that_makes_no_sense_is_refused(value: str) -> None:
    history, _ = three_nodes()
    refused = history.apply(SetSetting("finished_requests", value))
    assert refused is not None
    assert refused.code == "bad_setting"
    assert "from 1 to" in refused.hint


@pytest.mark.parametrize("value", ["", "1", str(FINISHED.most)])
def test_a_number_of_finished_requests_is_taken(value: str) -> None:
    assert three_nodes()[0].apply(SetSetting("finished_requests", value)) is None


def test_an_id_of_another_form_does_not_hide_the_newest_time() -> None:
    """Else the horizon would stay low, and a forgotten id could be decided again."""
    young = Young().with_decisions([TIMED], 1)
    assert young.newest_ms > 0
    assert young.with_decisions(["zzz"], 2).newest_ms == young.newest_ms
