"""``stele token``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stele.cli.errors import UsageError
from stele.cli.output import print_line
from stele.runtime.callers import line_of
from stele.runtime.tokens import new_token

PRIVATE = 0o600


def token(
    name: str, file: Path, /, *, may: Annotated[tuple[str, ...], Parameter(negative="")] = ()
) -> None:
    """Make an access token, and print the line that admits it.

    Add the line to the file of STELE_HTTP_CALLERS_FILE. Metadata-log, catch-up and the console read it within
    a second. The line holds a hash of the token. To withdraw the token, delete the line.

    Args:
        name: The owner, who becomes the actor of all commands with the token.
        file: The file to create for the token. Pass it as --token-file or STELE_TOKEN_FILE.
        may: Allow only this command, such as create_keyspace or recover; may be repeated. Default: all.
    """
    made = new_token()
    try:
        line = line_of(name, made, may)
    except ValueError as error:
        raise UsageError(f"This makes no line: {error}.", "stele token NAME FILE") from error
    with open(file, "x", encoding="utf-8", opener=_private) as out:
        out.write(f"{made}\n")
    print_line(line)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)
