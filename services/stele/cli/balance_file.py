"""``stele plan --file``: the balancer's moves for a cluster that a file describes."""

from __future__ import annotations

import sys
from pathlib import Path

from stele.cli.balance_words import exit_of, print_plan
from stele.cli.errors import UsageError
from stele.cli.output import print_value_as_json
from stele.domain.balance.checks import BadCluster, read_cluster
from stele.domain.balance.offline import plan_offline


def show_balance(file: Path, *, as_json: bool) -> int:
    """Print the plan. Exit status 1 when it does not come to rest or something cannot be moved.

    Raises UsageError for a file that cannot be read or makes no sense.
    """
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}.") from None
    try:
        plan = plan_offline(read_cluster(raw))
    except BadCluster as error:
        raise UsageError(f"{file}: {error}.", "docs/balancer.md says what it holds.") from None
    if as_json:
        print_value_as_json(plan)
    else:
        print_plan(plan)
    return exit_of(plan)
