"""Write the generated parts of all pages: ``python -m tests.docs``."""

from tests.docs import (
    cli_page,
    errors_page,
    http_page,
    metrics_page,
    schemas_page,
    settings_page,
    stories_page,
    topics_page,
)

PAGES = (
    cli_page,
    errors_page,
    http_page,
    metrics_page,
    schemas_page,
    settings_page,
    stories_page,
    topics_page,
)


if __name__ == "__main__":
    for module in PAGES:
        page = module.PAGE.read_text()
        module.PAGE.write_text(module.page_with(page))
