"""The page of HTTP is what the OpenAPI documents say."""

from tests.docs.http_page import PAGE, page_with


def test_the_page_is_made_from_the_documents() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.http_page writes it anew"
