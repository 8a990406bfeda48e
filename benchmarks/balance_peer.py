"""Meta's Rebalancer on the clusters of ``benchmarks.balance``: the peer that can be installed (Apache-2.0).

It needs Python 3.12 and is none of this project's dependencies, so it runs in a process of its own, by the
interpreter that ``--peer`` names, which needs nothing but ``pip install rebalancer==1.0.4``. A job is read from
standard input and the result is the last line of standard output, both JSON.

It is a general solver; the model is the part of our rules that it is asked for: nodes have even bytes, and
no two replicas of a tablet are in one rack. Its best setting for this is used, greedy moves of single replicas;
tables and shards are not evened out, nor is there a reason for each move.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

ABSOLUTE: Final = 0
IDEAL: Final = 4
"""Of the library's LimitType and BalanceV2SpecFormula: it takes their numbers alone."""


def solved(job: dict[str, Any]) -> dict[str, Any]:
    """``racks`` by node and ``replicas`` as [tablet, node, bytes]; gives processor seconds, of
    all threads, and each replica's node.
    """
    from rebalancer import ProblemSolver  # type: ignore[import-not-found]  # noqa: PLC0415

    names = [f"{tablet}/{at}" for at, (tablet, _, _) in enumerate(job["replicas"])]
    held: dict[str, list[str]] = {node: [] for node in job["racks"]}
    tablets: dict[str, list[str]] = {}
    for name, (tablet, node, _) in zip(names, job["replicas"], strict=True):
        held[node].append(name)
        tablets.setdefault(str(tablet), []).append(name)
    sizes = {n: float(size) for n, (_, _, size) in zip(names, job["replicas"], strict=True)}
    solver = ProblemSolver("stele", "benchmark")
    solver.set_log_level("ERR")
    solver.set_object_name("replica")
    solver.set_container_name("node")
    solver.set_assignment(held)
    solver.add_scope("rack", job["racks"])
    solver.add_partition("tablet", tablets)
    solver.add_object_dimension("bytes", sizes)
    apart = {
        "name": "apart",
        "scope": "rack",
        "partitionName": "tablet",
        "limit": {"type": ABSOLUTE, "globalLimit": 1},
    }
    solver.add_constraint({"groupCountSpec": apart})
    even = {"name": "even", "scope": "node", "dimension": "bytes", "formula": IDEAL}
    solver.add_goal({"balanceV2Spec": even})
    greedy = {
        "moveTypeList": [{"singleGreedyMoveTypeSpec": {}}],
        "solveTime": int(job["limit_s"]),
    }
    solver.add_solver({"localSearchSolverSpec": greedy})
    began_s = time.process_time()
    found = solver.solve()["assignment"]
    return {"seconds": time.process_time() - began_s, "nodes": [found[name] for name in names]}


if __name__ == "__main__":
    print(json.dumps(solved(json.load(sys.stdin))))
