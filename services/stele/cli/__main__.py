"""Entry point of ``stele``, also as ``python -m stele.cli``: one process per command."""

from __future__ import annotations

import gc
import sys

_COLLECT_EVERY = 50_000
"""New objects between two garbage collections. The objects that imports create stay alive. A
collection every 700 objects, the default, costs a tenth of the time of a read."""


def main() -> None:
    """Run the command and exit with a code of ``errors.Exit``."""
    gc.set_threshold(_COLLECT_EVERY)
    try:
        from stele.cli.main import run  # noqa: PLC0415  (what it imports is most of what a read costs)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "stele":
            raise
        raise SystemExit(
            f"The command line is not installed here, only a library ({error.name} is missing): give pip"
            " the extra 'services', as in pip install \"$STELE[services]\" with the clone's folder."
        ) from None
    code = run(sys.argv[1:])
    gc.freeze()  # the end of the process frees all of it: to look through it first takes 20 ms
    raise SystemExit(code)


if __name__ == "__main__":
    main()
