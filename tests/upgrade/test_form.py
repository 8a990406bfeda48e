"""The record format is stable since the commit that ``schemas/FORM`` names."""

from __future__ import annotations

from stele.log.schemas import ORDER_FILE, schema_folder
from tests.upgrade.builds import file_of_commit, form_commit


def test_schemas_of_the_form_commit_are_kept_in_order() -> None:
    """Otherwise a log of that build is unreadable: name a later commit, or restore the schema."""
    path = f"schemas/history/{ORDER_FILE}"
    then = file_of_commit(form_commit(), path).split()
    now = (schema_folder() / "history" / ORDER_FILE).read_text().split()
    assert now[: len(then)] == then
    for name in then:
        kept = (schema_folder() / "history" / name).read_text()
        assert kept == file_of_commit(form_commit(), f"schemas/history/{name}"), name
