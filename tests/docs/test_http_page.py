"""The page of HTTP agrees with the OpenAPI documents."""

from tests.docs.http_page import PAGE, page_with


def test_page_is_up_to_date_with_the_openapi_documents() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run `python -m tests.docs.http_page`"
