"""``python -m tests.mutation --sample 500 --seed 1``."""

from argparse import ArgumentParser, ArgumentTypeError

from tests.mutation.changes import KINDS
from tests.mutation.files import FOLDERS, sources
from tests.mutation.run import SampleOptions, main


def path_with_sources(path: str) -> str:
    try:
        sources([path])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return path


parser = ArgumentParser(
    prog="python -m tests.mutation", description="test the tests with generated bugs"
)
parser.add_argument("--sample", type=int, default=500, help="number of changes to try (500)")
parser.add_argument("--seed", type=int, default=1, help="seed of the sample (1)")
parser.add_argument(
    "--paths",
    nargs="+",
    type=path_with_sources,
    default=FOLDERS,
    help="only in these files and folders, relative to the root",
)
parser.add_argument(
    "--kinds", nargs="+", choices=KINDS, default=KINDS, help="only changes of these kinds (all)"
)
parser.add_argument(
    "--again",
    action="store_true",
    help="only the changes that survived or did not run in the last run",
)
parser.add_argument("--jobs", type=int, default=2, help="changes tried in parallel (2)")
asked = parser.parse_args()
wanted = SampleOptions(asked.paths, asked.kinds, asked.sample, asked.seed, asked.again)
raise SystemExit(main(wanted, asked.jobs))
