"""The page of the command line is what its help says."""

import subprocess
import sys

from tests.docs.cli_page import PAGE
from tests.docs.pages import REPOSITORY

MADE = "from tests.docs.cli_page import PAGE, page_with; print(page_with(PAGE.read_text()), end='')"


def test_the_page_is_made_from_the_commands() -> None:
    """Run in a separate process: a command that was called before has another first line."""
    made = subprocess.run(
        [sys.executable, "-c", MADE], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert PAGE.read_text() == made.stdout, "python -m tests.docs.cli_page writes it anew"
