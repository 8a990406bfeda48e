"""Settings of the balancer's process; what it may do at one time is set in the log."""

from pydantic import Field

from stele.runtime.settings import ServiceSettings


class BalancerSettings(ServiceSettings):
    """The common settings, and how often it looks."""

    balance_interval_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="Time between two looks when nothing happens; seconds. An epoch is looked at sooner.",
    )
