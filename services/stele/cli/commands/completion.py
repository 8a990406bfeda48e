"""``stele completion``: Tab completes commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from stele.cli.errors import UsageError
from stele.cli.output import print_line

Shell = Literal["bash", "zsh", "fish"]


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
