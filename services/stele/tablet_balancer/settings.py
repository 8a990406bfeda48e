"""Settings of the balancer's process; what it may do at one time is set in the log."""

from typing import Annotated

from msgspec import Meta

from stele.runtime.settings import ServiceSettings


class BalancerSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, and how often it looks."""

    balance_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time between two looks when nothing happens; seconds. An epoch is looked at sooner.",
        ),
    ] = 1.0
