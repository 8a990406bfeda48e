"""A log that is frozen, or of one actor, takes nothing from others and remembers nothing of them."""

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.requests import CommandRefused
from stele_simulator.violation import require

RULE = "a frozen log"
ALWAYS = ("restrict_commits", "recover")
"""A log that is lost is recovered as what it was."""
MODES = ("frozen", "single_user")
"""Also the codes of commands that are not taken then."""


def check_restricted(before: Image, epoch: Epoch) -> None:
    """Check the epoch after ``before`` by its own record."""
    mode, only = str(before.commits.mode), before.commits.actor
    if mode == "open":
        return
    decided = [(epoch.command, epoch.actor)] if epoch.command != "noop" else []
    decided += [(f.command, f.actor) for f in epoch.facts if isinstance(f, CommandRefused)]
    for command, actor in decided:
        require(
            command in ALWAYS or (mode == "single_user" and actor == only),
            RULE,
            f"since epoch {before.commits.since_epoch} nothing is decided but for '{only}'",
            f"epoch {epoch.epoch} decides {command} of {actor}",
        )


def check_not_taken(image: Image | None, code: str, epoch: int) -> None:
    """Check that a rejection by a frozen log belongs to a state of the log, ``image``, that is frozen."""
    if code not in MODES:
        return
    found = "not durable" if image is None else str(image.commits.mode)
    require(
        found == code,
        RULE,
        f"who is told {code} in the light of epoch {epoch} finds it so there",
        f"that epoch is {found}",
    )
