"""``stele token``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stele.cli.errors import UsageError
from stele.cli.output import console
from stele.runtime.callers import line_of
from stele.runtime.tokens import new_token

PRIVATE = 0o600


def token(
    name: str, file: Path, *, may: Annotated[tuple[str, ...], Parameter(negative="")] = ()
) -> None:
    """Make the token of somebody who may change a cluster, and print the line that lets him in.

    The line goes into the file of STELE_HTTP_CALLERS_FILE, which metadata-log, catch-up and the console read;
    it counts a second later. It holds the token's hash, of which nobody can make the token. To withdraw a token
    delete its line.

    Parameters
    ----------
    name
        Who it is of: the actor of all that he asks for.
    file
        A file that is not there yet, for the token: for the command line as --token-file or STELE_TOKEN_FILE.
    may
        Only this command, such as create_keyspace, or recover; may be repeated. Else all that people send.
    """
    made = new_token()
    try:
        line = line_of(name, made, may)
    except ValueError as error:
        raise UsageError(f"This makes no line: {error}.", "stele token NAME FILE") from error
    with open(file, "x", encoding="utf-8", opener=_private) as out:
        out.write(f"{made}\n")
    console().print(line, soft_wrap=True, highlight=False, markup=False)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)
