"""The form of records holds from the commit on that ``schemas/FORM`` names."""

from __future__ import annotations

from stele.log.schemas import ORDER_FILE, schema_folder
from tests.upgrade.builds import file_of_commit, form_commit


def test_every_schema_of_that_commit_is_still_read_and_came_first() -> None:
    """Else a log of that build could not be read: name a later commit, or put the schema back."""
    path = f"schemas/history/{ORDER_FILE}"
    then = file_of_commit(form_commit(), path).split()
    now = (schema_folder() / "history" / ORDER_FILE).read_text().split()
    assert now[: len(then)] == then
    for name in then:
        kept = (schema_folder() / "history" / name).read_text()
        assert kept == file_of_commit(form_commit(), f"schemas/history/{name}"), name
