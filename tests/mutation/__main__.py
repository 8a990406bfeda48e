"""``python -m tests.mutation --sample 500 --seed 1``."""

from argparse import ArgumentParser, ArgumentTypeError

from tests.mutation.changes import KINDS
from tests.mutation.files import FOLDERS, sources
from tests.mutation.run import Wanted, main


def _with_sources(path: str) -> str:
    try:
        sources([path])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return path


parser = ArgumentParser(prog="python -m tests.mutation", description="plant bugs made by machine")
parser.add_argument("--sample", type=int, default=500, help="so many changes of all (500)")
parser.add_argument("--seed", type=int, default=1, help="which (1)")
parser.add_argument(
    "--paths",
    nargs="+",
    type=_with_sources,
    default=FOLDERS,
    help="only in these files and folders, from the root",
)
parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="only such (all)")
parser.add_argument("--again", action="store_true", help="only those that the last run left")
parser.add_argument("--jobs", type=int, default=2, help="changes tried at one time (2)")
asked = parser.parse_args()
wanted = Wanted(asked.paths, asked.kinds, asked.sample, asked.seed, asked.again)
raise SystemExit(main(wanted, asked.jobs))
