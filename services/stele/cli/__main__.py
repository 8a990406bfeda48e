"""``stele``, also as ``python -m stele.cli``: a process of a command and its end."""

from __future__ import annotations

import gc
import sys

_COLLECT_EVERY = 50_000
"""Objects. What imports make stays: to look through it every 700, as is usual, costs a tenth of a read."""


def main() -> None:
    """Run and leave with the exit code of ``errors.Exit``."""
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
