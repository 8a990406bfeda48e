"""Access for a person: the console's address, tokens of callers, and Tab completion."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from stele.cli.errors import CliError, UsageError
from stele.cli.options import Here
from stele.cli.output import console as output
from stele.cli.output import print_line
from stele.cli.places import find_places, told_by_shell
from stele.runtime.tokens import new_token

PRIVATE = 0o600
Shell = Literal["bash", "zsh", "fish"]


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
    from stele.runtime.callers import line_of  # noqa: PLC0415  (it imports what serves HTTP)

    made = new_token()
    try:
        line = line_of(name, made, may)
    except ValueError as error:
        raise UsageError(f"This makes no line: {error}.", "stele token NAME FILE") from error
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as out:
            out.write(f"{made}\n")
    except FileExistsError as error:
        raise CliError(
            f"{file} exists, and is not overwritten.", "Name another file, or delete it."
        ) from error
    print_line(line)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)


def completion(
    shell: Shell | None = None,
    /,
    *,
    show: Annotated[bool, Parameter(name="--print", negative="")] = False,
) -> None:
    """Install Tab completion of commands and options for the next shell.

    It writes a completion file, and a line that reads it into the start file of the shell.

    Args:
        shell: bash, zsh or fish; default: the shell that runs this command.
        show: Print the file and the line, and write nothing.
    """
    from stele.cli.main import build_app  # noqa: PLC0415  (it has this command in its table)

    app = build_app()
    try:
        if show:
            print_line(app.generate_completion(shell=shell))
            return
        path = app.install_completion(shell=shell)
    except (ValueError, RuntimeError) as error:  # which shell it is cannot be seen
        raise UsageError(" ".join(str(error).split()), "Name it: stele completion bash") from error
    print_line(f"Written to {path}; a new shell completes `stele` with Tab.")
