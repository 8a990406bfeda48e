"""Known bugs, planted on purpose: a simulator that does not find them finds nothing."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from stele.sim.mutants_archive import ARCHIVE_TEST_MUTANTS
from stele.sim.mutants_balancing import BALANCING_MUTANTS, BALANCING_TEST_MUTANTS
from stele.sim.mutants_barriers import BARRIER_MUTANTS
from stele.sim.mutants_clients import CLIENT_MUTANTS
from stele.sim.mutants_colocated import COLOCATED_MUTANTS, COLOCATED_TEST_MUTANTS
from stele.sim.mutants_columns import COLUMN_TEST_MUTANTS
from stele.sim.mutants_dead import DEAD_NODE_MUTANTS, DEAD_RACK_MUTANTS
from stele.sim.mutants_failures import FAILURE_MUTANTS
from stele.sim.mutants_freezing import FREEZING_MUTANTS
from stele.sim.mutants_generations import GENERATION_MUTANTS, GENERATION_TEST_MUTANTS
from stele.sim.mutants_global import GLOBAL_MUTANTS
from stele.sim.mutants_guards import GUARD_MUTANTS, GUARD_TEST_MUTANTS
from stele.sim.mutants_hot import HOT_TEST_MUTANTS
from stele.sim.mutants_joining import JOINING_MUTANTS
from stele.sim.mutants_keyspaces import KEYSPACE_MUTANTS
from stele.sim.mutants_log import LOG_MUTANTS
from stele.sim.mutants_lost_log import LOST_LOG_MUTANTS, LOST_LOG_TEST_MUTANTS
from stele.sim.mutants_members import MEMBER_MUTANTS
from stele.sim.mutants_overrides import OVERRIDE_TEST_MUTANTS
from stele.sim.mutants_processes import PROCESS_MUTANTS
from stele.sim.mutants_racks import RACK_TEST_MUTANTS
from stele.sim.mutants_recovery import RECOVERY_TEST_MUTANTS
from stele.sim.mutants_repair import REPAIR_MUTANTS, REPAIR_TEST_MUTANTS
from stele.sim.mutants_replication import REPLICATION_MUTANTS, REPLICATION_TEST_MUTANTS
from stele.sim.mutants_resizing import RESIZING_MUTANTS, RESIZING_TEST_MUTANTS
from stele.sim.mutants_rounds import ROUND_MUTANTS
from stele.sim.mutants_rows import ROW_MUTANTS
from stele.sim.mutants_shards import SHARD_MUTANTS, SHARD_TEST_MUTANTS
from stele.sim.mutants_shells import SHELL_MUTANTS
from stele.sim.mutants_snapshots import SNAPSHOT_MUTANTS, SNAPSHOT_TEST_MUTANTS
from stele.sim.mutants_tablets import TABLET_MUTANTS
from stele.sim.mutants_topology import TOPOLOGY_MUTANTS
from stele.sim.mutants_upkeep import UPKEEP_TEST_MUTANTS
from stele.sim.patching import Patch
from stele.sim.processes.making import PROFILE as DISASTER
from stele.sim.processes.run import run_disaster
from stele.sim.run import Result, run_seed
from stele.sim.scenario import DEFAULT_DURATION_S

Mutant = Callable[[Patch], None]

SIMULATED: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        *LOG_MUTANTS,
        *FREEZING_MUTANTS,
        *ROUND_MUTANTS,
        *TOPOLOGY_MUTANTS,
        *DEAD_NODE_MUTANTS,
        *MEMBER_MUTANTS,
        *GLOBAL_MUTANTS,
        *KEYSPACE_MUTANTS,
        *FAILURE_MUTANTS,
        *GENERATION_MUTANTS,
        *TABLET_MUTANTS,
        *RESIZING_MUTANTS,
        *REPLICATION_MUTANTS,
        *BALANCING_MUTANTS,
        *REPAIR_MUTANTS,
        *SHARD_MUTANTS,
        *COLOCATED_MUTANTS,
        *SNAPSHOT_MUTANTS,
        *LOST_LOG_MUTANTS,
        *PROCESS_MUTANTS,
        *ROW_MUTANTS,
        *GUARD_MUTANTS,
    )
}
"""Those that runs or stories of the simulator may find."""
PROCESSES: Final = frozenset(
    m.__name__ for m in (*LOST_LOG_MUTANTS, *PROCESS_MUTANTS, *ROW_MUTANTS, *GUARD_MUTANTS)
)
"""Those of them that only whole production processes can have, which the disasters are for."""
MUTANTS: Final[dict[str, Mutant]] = {
    **SIMULATED,
    **{
        mutant.__name__: mutant
        for mutant in (
            *SHELL_MUTANTS,
            *JOINING_MUTANTS,
            *CLIENT_MUTANTS,
            *BARRIER_MUTANTS,
            *DEAD_RACK_MUTANTS,
            *GENERATION_TEST_MUTANTS,
            *RESIZING_TEST_MUTANTS,
            *REPLICATION_TEST_MUTANTS,
            *BALANCING_TEST_MUTANTS,
            *COLUMN_TEST_MUTANTS,
            *HOT_TEST_MUTANTS,
            *REPAIR_TEST_MUTANTS,
            *SHARD_TEST_MUTANTS,
            *COLOCATED_TEST_MUTANTS,
            *RACK_TEST_MUTANTS,
            *SNAPSHOT_TEST_MUTANTS,
            *RECOVERY_TEST_MUTANTS,
            *ARCHIVE_TEST_MUTANTS,
            *UPKEEP_TEST_MUTANTS,
            *OVERRIDE_TEST_MUTANTS,
            *LOST_LOG_TEST_MUTANTS,
            *GUARD_TEST_MUTANTS,
        )
    },
}
"""All; the others are found by tests alone."""
MOST_SEEDS: Final = 200
PROFILES_IN_TURN: Final = ("rough", "storm")
"""A search goes through seeds and, for each, through these."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How a mutant was found: after how many runs, by which, and what it contradicted."""

    mutant: str
    rule: str
    runs: int
    profile: str = ""
    seed: int = -1
    invariant: str = ""
    expected: str = ""
    found: str = ""
    at_s: float = 0.0


def run_any(seed: int, profile: str, duration_s: float = DEFAULT_DURATION_S) -> Result:
    """One run of any profile. A disaster has a length of its own."""
    if profile == DISASTER:
        return run_disaster(seed)
    return run_seed(seed, profile, duration_s)


def run_mutant(name: str, seed: int, profile: str) -> Result:
    """One run with the bug planted. Raises KeyError for an unknown mutant."""
    with Patch() as patch:
        MUTANTS[name](patch)
        return run_any(seed, profile)


def rule_of(name: str) -> str:
    return " ".join((MUTANTS[name].__doc__ or "").split())


def hunt(name: str, most_seeds: int = MOST_SEEDS) -> Found:
    """Run seed after seed until an invariant fails; ``seed`` is -1 when none did."""
    profiles = (DISASTER,) if name in PROCESSES else PROFILES_IN_TURN
    for runs, (seed, profile) in enumerate(_runs(most_seeds, profiles), 1):
        failure = run_mutant(name, seed, profile).failure
        if failure is not None:
            return Found(
                mutant=name,
                rule=rule_of(name),
                runs=runs,
                profile=profile,
                seed=seed,
                invariant=failure.invariant,
                expected=failure.expected,
                found=failure.found,
                at_s=failure.at_s,
            )
    return Found(mutant=name, rule=rule_of(name), runs=most_seeds)


def _runs(most: int, profiles: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for run in range(most):
        turn = len(profiles)
        yield run // turn, profiles[run % turn]
