"""The page of the command line agrees with the help texts."""

import subprocess
import sys

from tests.docs.cli_page import PAGE
from tests.docs.pages import REPOSITORY

PRINT_PAGE = (
    "from tests.docs.cli_page import PAGE, page_with; print(page_with(PAGE.read_text()), end='')"
)


def test_page_is_up_to_date_with_the_commands() -> None:
    """Runs in a separate process: a previous call of a command changes the first line of its help."""
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_PAGE],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert PAGE.read_text() == printed.stdout, "run `python -m tests.docs.cli_page`"
