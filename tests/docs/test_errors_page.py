"""The page of errors is what the code says."""

from tests.docs.errors_page import PAGE, errors, page_with


def test_the_page_is_made_from_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.errors_page writes it anew"


def test_it_has_refusals_and_errors_over_http() -> None:
    codes = {each.code for each in errors()}
    assert {"…_exists", "too_few_nodes", "topic_missing", "unknown_epoch"} <= codes
