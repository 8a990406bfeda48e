"""What every process does first: read its settings, and set up its logs by them."""

import os
from typing import TypeVar

from stele.runtime.logs import configure_logs, get_logger
from stele.runtime.settings import ServiceSettings, load_settings, misspelt

S = TypeVar("S", bound=ServiceSettings)

log = get_logger(__name__)


def started(service: str, kind: type[S]) -> S:
    """The settings of a process of this service. Raises ConfigurationError."""
    settings = load_settings(kind)
    configure_logs(
        service=service,
        instance=settings.called(),
        level=settings.log_level,
        json=settings.log_json,
    )
    for variable, meant in misspelt(kind, os.environ):
        log.warning("a variable is not read", variable=variable, hint=f"Is {meant} meant?")
    return settings
