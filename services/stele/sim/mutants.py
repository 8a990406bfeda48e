"""Known bugs, planted on purpose: a simulator that does not find them finds nothing."""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.sim.mutants_archive import ARCHIVE_TEST_MUTANTS
from stele.sim.mutants_balancing import BALANCING_MUTANTS, BALANCING_TEST_MUTANTS
from stele.sim.mutants_barriers import BARRIER_MUTANTS
from stele.sim.mutants_beginning import BEGINNING_TEST_MUTANTS
from stele.sim.mutants_clients import CLIENT_MUTANTS
from stele.sim.mutants_colocated import COLOCATED_MUTANTS, COLOCATED_TEST_MUTANTS
from stele.sim.mutants_columns import COLUMN_TEST_MUTANTS
from stele.sim.mutants_dead import DEAD_NODE_MUTANTS, DEAD_RACK_MUTANTS
from stele.sim.mutants_disks import DISK_MUTANTS, DISK_TEST_MUTANTS
from stele.sim.mutants_failures import FAILURE_MUTANTS
from stele.sim.mutants_freezing import FREEZING_MUTANTS
from stele.sim.mutants_generations import GENERATION_MUTANTS, GENERATION_TEST_MUTANTS
from stele.sim.mutants_global import GLOBAL_MUTANTS
from stele.sim.mutants_guards import GUARD_MUTANTS, GUARD_TEST_MUTANTS
from stele.sim.mutants_hot import HOT_TEST_MUTANTS
from stele.sim.mutants_joining import JOINING_MUTANTS
from stele.sim.mutants_keyspaces import KEYSPACE_MUTANTS
from stele.sim.mutants_log import LOG_MUTANTS, LOG_TEST_MUTANTS
from stele.sim.mutants_lost_log import LOST_LOG_MUTANTS, LOST_LOG_TEST_MUTANTS
from stele.sim.mutants_members import MEMBER_MUTANTS
from stele.sim.mutants_overrides import OVERRIDE_TEST_MUTANTS
from stele.sim.mutants_parts import PART_MUTANTS
from stele.sim.mutants_processes import PROCESS_MUTANTS
from stele.sim.mutants_racks import RACK_TEST_MUTANTS
from stele.sim.mutants_recovery import RECOVERY_TEST_MUTANTS
from stele.sim.mutants_releases import RELEASE_MUTANTS
from stele.sim.mutants_repair import REPAIR_MUTANTS, REPAIR_TEST_MUTANTS
from stele.sim.mutants_replication import REPLICATION_MUTANTS, REPLICATION_TEST_MUTANTS
from stele.sim.mutants_requests import REQUEST_MUTANTS
from stele.sim.mutants_resizing import RESIZING_MUTANTS, RESIZING_TEST_MUTANTS
from stele.sim.mutants_rounds import ROUND_MUTANTS
from stele.sim.mutants_router import ROUTER_MUTANTS, ROUTER_TEST_MUTANTS
from stele.sim.mutants_rows import ROW_MUTANTS, ROW_STORY_MUTANTS
from stele.sim.mutants_rules import RULE_TEST_MUTANTS
from stele.sim.mutants_shards import SHARD_MUTANTS, SHARD_TEST_MUTANTS
from stele.sim.mutants_shells import SHELL_MUTANTS
from stele.sim.mutants_snapshots import SNAPSHOT_MUTANTS, SNAPSHOT_TEST_MUTANTS
from stele.sim.mutants_tablets import TABLET_MUTANTS
from stele.sim.mutants_topology import TOPOLOGY_MUTANTS
from stele.sim.mutants_upkeep import UPKEEP_TEST_MUTANTS
from stele.sim.patching import Patch
from stele.sim.processes.run import run_disaster
from stele.sim.result import Result

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
        *DISK_MUTANTS,
        *ROW_MUTANTS,
        *ROW_STORY_MUTANTS,
        *GUARD_MUTANTS,
        *REQUEST_MUTANTS,
        *PART_MUTANTS,
        *RELEASE_MUTANTS,
        *ROUTER_MUTANTS,
    )
}
"""Those that runs or stories of the simulator may find."""
BY_DISASTERS: Final = frozenset(
    mutant.__name__
    for mutant in (
        *LOST_LOG_MUTANTS,
        *PROCESS_MUTANTS,
        *DISK_MUTANTS,
        *ROW_MUTANTS,
        *GUARD_MUTANTS,
        *REQUEST_MUTANTS,
        *PART_MUTANTS,
        *ROUTER_MUTANTS,
    )
) | frozenset(
    [
        "acknowledge_before_apply",
        "compare_and_swap_by_epoch_number",
        "replay_a_loser",
        "forget_applied_requests",
        "recognise_requests_by_payload",
        "reject_on_an_old_state",
        "barrier_reads_locally",
        "barrier_that_lost_is_not_answered",
        "barrier_is_shared_for_ever",
        "loser_is_not_decided_again",
        "timeout_is_failure",
        "lost_append_is_never_resolved",
        "state_ids_without_chance",
        "snapshot_is_one_record_off",
        "snapshot_forgets_topology",
        "writer_trusts_its_own_image",
        "watch_goes_on_one_epoch_late",
        "watch_is_told_losers",
        "past_begins_with_a_later_image",
        "frozen_log_refuses",
        "frozen_by_what_was_read",
        "frozen_is_told_before_it_is_certain",
        "skip_the_gate",
        "gate_counts_the_old_replicas_only",
        "gate_needs_one_answer",
        "fence_need_not_be_known",
        "node_acknowledges_before_applying",
        "reads_move_before_streaming",
        "fence_above_version",
        "fence_is_carried_although_some_were_excluded",
        "barrier_counts_all_but_the_new_transitions",
        "work_is_known_without_its_session",
        "session_id_is_used_again",
        "session_is_shared",
        "writes_move_with_the_reads",
        "read_new_too_early",
        "row_takes_the_version_of_a_split",
        "row_keeps_its_version",
        "write_quorum_over_the_old_set_only",
        "write_is_acknowledged_by_one",
        "read_is_answered_by_one",
        "cleanup_is_forgotten",
        "cleanup_counts_before_it_is_done",
        "cleanup_keeps_primary_ranges_only",
        "drained_is_not_asked",
        "move_streams_to_the_mover_alone",
        "rebuild_is_done_before_it_has_streamed",
        "request_is_promoted_whose_row_changed",
        "requests_do_not_hold_their_version",
        "rollback_forgets_the_placements",
        "serve_before_caught_up",
        "truncation_ends_by_a_quorum",
        "undone_group_keeps_its_tokens",
        "undone_join_makes_a_member",
        "undone_removal_makes_a_member_again",
        "who_stays_is_given_nothing",
        "who_stays_of_two_need_not_be_there",
        "work_is_ordered_before_the_fence",
    ]
)
"""Those of them that runs find; stories find the others."""
MUTANTS: Final[dict[str, Mutant]] = {
    **SIMULATED,
    **{
        mutant.__name__: mutant
        for mutant in (
            *LOG_TEST_MUTANTS,
            *SHELL_MUTANTS,
            *JOINING_MUTANTS,
            *CLIENT_MUTANTS,
            *ROUTER_TEST_MUTANTS,
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
            *BEGINNING_TEST_MUTANTS,
            *GUARD_TEST_MUTANTS,
            *RULE_TEST_MUTANTS,
            *DISK_TEST_MUTANTS,
        )
    },
}
"""All; the others are found by tests alone."""
MOST_SEEDS: Final = 200


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How a mutant was found: after how many runs, by which seed, and what it contradicted."""

    mutant: str
    rule: str
    runs: int
    seed: int = -1
    invariant: str = ""
    expected: str = ""
    found: str = ""
    at_s: float = 0.0


def run_mutant(name: str, seed: int) -> Result:
    """One run with the bug planted. Raises KeyError for an unknown mutant."""
    with Patch() as patch:
        MUTANTS[name](patch)
        return run_disaster(seed)


def rule_of(name: str) -> str:
    return " ".join((MUTANTS[name].__doc__ or "").split())


def hunt(name: str, most_seeds: int = MOST_SEEDS) -> Found:
    """Run seed after seed until an invariant fails; ``seed`` is -1 when none did."""
    for seed in range(most_seeds):
        failure = run_mutant(name, seed).failure
        if failure is not None:
            return Found(
                mutant=name,
                rule=rule_of(name),
                runs=seed + 1,
                seed=seed,
                invariant=failure.invariant,
                expected=failure.expected,
                found=failure.found,
                at_s=failure.at_s,
            )
    return Found(mutant=name, rule=rule_of(name), runs=most_seeds)
