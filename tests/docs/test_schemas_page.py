"""The page of schemas is what the schemas say."""

from tests.docs.schemas_page import PAGE, page_with


def test_the_page_is_made_from_the_schemas() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.schemas_page writes it anew"
