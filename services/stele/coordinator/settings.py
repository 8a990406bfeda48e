"""Settings of the coordinator: how patient it is."""

from typing import Annotated

from msgspec import Meta

from stele.coordinator.model import Limits
from stele.runtime.settings import ServiceSettings

_DEFAULT = Limits()


class CoordinatorSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and the limits of ``next_steps``; all times in seconds."""

    resend_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="A command or order without visible effect is sent again after this time.",
        ),
    ] = _DEFAULT.resend_s
    barrier_patience_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="A barrier waits this long for every node before its level will do; seconds.",
        ),
    ] = _DEFAULT.barrier_patience_s
    dead_node_patience_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description=(
                "Requests that silence may end (on_unresponsive) wait this long for dead nodes; seconds."
            ),
        ),
    ] = _DEFAULT.dead_node_patience_s
    silence_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Work without progress for this long has failed where silence may end it; seconds.",
        ),
    ] = _DEFAULT.silence_s
    work_attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Streaming that failed is ordered again until it was tried so often.",
        ),
    ] = _DEFAULT.attempts

    group: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="So many joins or removals go together as one transition at most.",
        ),
    ] = _DEFAULT.group

    def limits(self) -> Limits:
        return Limits(
            resend_s=self.resend_s,
            barrier_patience_s=self.barrier_patience_s,
            down_after_s=self.heartbeat_timeout_s,
            dead_node_patience_s=self.dead_node_patience_s,
            silence_s=self.silence_s,
            attempts=self.work_attempts,
            group=self.group,
        )
