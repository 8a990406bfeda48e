"""Wait until the live members have applied a change of the schema, by the acks of the session-guard."""

from __future__ import annotations

from typing import Final

from stele.cli.client import Client, Deadline, ask
from stele.cli.options import AgreedChange
from stele.cli.output import error_console, joined
from stele.runtime.answers.session_guard import AGREEMENT_PATH, SchemaAgreement

GUARD: Final = "session-guard"
PART_S: Final = 1
"""Seconds for which one request waits: less than the limit of a request that adds details."""


def await_agreement(client: Client, change: AgreedChange, epoch: int) -> None:
    """Wait until the live members have applied ``epoch``, and print a warning if they have not.

    The change is in the log already, so a member that is behind is no error.
    """
    if not change.wait:
        return
    deadline, found = Deadline(change.wait_s), None
    while found is None or not (found.agreed or deadline.left_s() <= 0):
        part_s = PART_S if deadline.left_s() > 0 else 0
        found = ask(client, GUARD, AGREEMENT_PATH, SchemaAgreement, epoch=epoch, timeout_s=part_s)
        if found is None:
            why = client.silent.get(GUARD, f"no address of a {GUARD} is known.")
            _warn(f"The change is done. Whether all members have applied it is unknown: {why}")
            return
    if not found.agreed:
        behind = joined(found.behind) or f"the {GUARD}"
        _warn(
            f"The change is done, but after {change.wait_s} s {behind} had not applied it."
            " `stele schema agreement` shows the members."
        )


def _warn(text: str) -> None:
    error_console().print(text, soft_wrap=True, markup=False, highlight=False)
