"""``python -m tests.mutation --sample 500 --seed 1``."""

from argparse import ArgumentParser

from tests.mutation.run import main

parser = ArgumentParser(prog="python -m tests.mutation", description="plant bugs made by machine")
parser.add_argument("--sample", type=int, default=500, help="so many changes of all (500)")
parser.add_argument("--seed", type=int, default=1, help="which (1)")
parser.add_argument("--again", action="store_true", help="only those that the last run left")
asked = parser.parse_args()
raise SystemExit(main(asked.sample, asked.seed, asked.again))
