"""``stele console``: where the page is that shows the cluster."""

from __future__ import annotations

import webbrowser
from typing import Annotated

from cyclopts import Parameter

from stele.cli.options import Here
from stele.cli.output import console as output
from stele.cli.output import print_line
from stele.cli.places import find_places, told_by_shell


def console(
    *,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    where: Here = Here(),
) -> None:
    """Print the address of the web console, which shows the cluster live and at past epochs.

    The address is that of --dir, else STELE_CONSOLE_URLS, else that of the stack in STELE_DIR or .stele.

    Args:
        open_: Also open it in the browser.
    """
    url = find_places((), where.directory, told_by_shell(where.typed)).of("console")[0]
    print_line(url, output())
    if open_:
        webbrowser.open(url)
