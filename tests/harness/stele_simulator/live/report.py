"""The result of a run on real processes, as text for people."""

from stele_simulator.live.run import LiveResult


def live_lines(result: LiveResult) -> list[str]:
    """Return lines about the faults, and about either the checks or the contradiction."""
    lines = [
        f"seed {result.seed}, {result.minutes:g} minutes: {'passed' if result.passed else 'FAILED'}",
        f"  faults    {result.faults} on processes and network,"
        f" {result.disturbed} pieces of {result.connections} connections sent again",
        f"  topology  {_requests(result)}",
        f"  commands  {result.commands}, {result.unanswered} without an answer",
        f"  data      {result.writes} writes and {result.reads} reads answered,"
        f" {result.refused} refused, {result.unknown} of unknown outcome",
        f"  longest time without an acknowledged write {result.longest_gap_s:.1f} s,"
        f" at rest {result.rest_s:.1f} s after the faults",
        f"  history   {result.history}",
    ]
    checked, failure = result.checked, result.failure
    if checked is not None:
        lines += [
            f"  checked   {checked.epochs} epochs ({checked.losers} losers), {checked.gates} gates,"
            f" {checked.commands} answers to commands ({checked.rejected} refusals),",
            f"            {checked.barriers} linearizable reads, {checked.data_operations} data"
            f" operations, {checked.watched} epochs at watches, {checked.probes} stale writes,",
            f"            {checked.truncations} truncations, {checked.copies} keys on their replicas,",
            f"            {checked.owed.reads} reads that had to be answered,"
            f" {checked.owed.without_a_broker} of them while a broker was gone",
        ]
    if failure is not None:
        lines += [
            f"{failure.invariant} does not hold:",
            f"  must be: {failure.expected}",
            f"  but is:  {failure.found}",
            "the last events:",
            *(f"  {line}" for line in failure.before),
        ]
    return lines


def _requests(result: LiveResult) -> str:
    done = [f"{count} {kind}" for kind, count in result.requests.items() if count]
    return ", ".join(done) or "nothing was done"
