"""Settings of the console's process."""

import secrets
from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta

from stele.runtime.settings import ConfigurationError, ServiceSettings

TOKEN_BYTES = 24


class ConsoleSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings, the access to the page, and the interval of its queries."""

    console_commands: Annotated[
        bool,
        Meta(description="Whether the page may start and cancel operations; false: it only shows."),
    ] = False
    console_token: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._~-]{0,256}$",
            description="Whoever opens the page must know it. Beyond loopback one is drawn when none is set.",
        ),
    ] = ""
    console_poll_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Time between two looks at what the services say of themselves; seconds.",
        ),
    ] = 1.0

    def check(self) -> None:
        super().check()
        if self.http_callers_file and self.console_token:
            raise ConfigurationError(
                "STELE_CONSOLE_TOKEN is set, and so is STELE_HTTP_CALLERS_FILE, by which each shows a token of"
                " his own: leave one of them out."
            )

    def token(self) -> str:
        """Return the token of the page; empty on loopback, and where each caller has a token."""
        if self.http_callers_file:
            return ""
        if self.console_token or is_loopback(self.http_host):
            return self.console_token
        return secrets.token_urlsafe(TOKEN_BYTES)

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses of each kind of service."""
        return {
            "metadata-log": self.metadata_log_urls,
            "coordinator": self.coordinator_urls,
            "session-guard": self.session_guard_urls,
            "tablet-balancer": self.tablet_balancer_urls,
            "catch-up": self.catch_up_urls,
            "placements": self.placements_urls,
        }


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
