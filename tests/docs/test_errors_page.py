"""The page of errors agrees with the code."""

from tests.docs.errors_page import PAGE, errors, page_with


def test_page_is_up_to_date_with_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run `python -m tests.docs.errors_page`"


def test_errors_include_rejections_and_http_errors() -> None:
    codes = {each.code for each in errors()}
    assert {"…_exists", "too_few_nodes", "topic_missing", "unknown_epoch"} <= codes
