"""Known bugs of switched off balancing: what moves all the same, what is cancelled with it, when it ends."""

from stele.domain.balancer import proposals
from stele.domain.model.schema import Off
from stele.domain.rules import schema
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted


@planted(STORY)
def balancer_moves_a_table_that_is_off(patch: Patch) -> None:
    """Neither the balancer's plan nor the log's decision heeds that balancing is off."""
    patch.function(proposals.standing_still, lambda image, now_ms: {})
    patch.function(schema.check_balancing, lambda image, actor, table, from_node="": None)


@planted(STORY)
def switch_that_has_expired_stays_off(patch: Patch) -> None:
    """The time limit of a switch passes, and nothing moves."""
    patch.attribute(Off, "expired", lambda self, now_ms: False)
