"""The page of schemas agrees with the schemas."""

from tests.docs.schemas_page import PAGE, page_with


def test_page_is_up_to_date_with_the_schemas() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run `python -m tests.docs.schemas_page`"
