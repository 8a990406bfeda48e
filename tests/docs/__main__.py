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
from tests.docs.pages import with_generated_part

GENERATED = {
    "cli": cli_page,
    "errors": errors_page,
    "http": http_page,
    "metrics": metrics_page,
    "schemas": schemas_page,
    "settings": settings_page,
    "stories": stories_page,
    "topics": topics_page,
}


def outdated() -> dict[str, str]:
    """Return the generated pages that differ from their files, by name."""
    found = dict[str, str]()
    for name, module in GENERATED.items():
        page = module.PAGE.read_text()
        generated = with_generated_part(page, name, "".join(module.sections()))
        if generated != page:
            found[name] = generated
    return found


if __name__ == "__main__":
    for name, page in outdated().items():
        GENERATED[name].PAGE.write_text(page)
