"""What every process does first: read its settings, and set up its logs by them."""

from typing import TypeVar

from stele.runtime.logs import configure_logs
from stele.runtime.settings import ServiceSettings, load_settings

S = TypeVar("S", bound=ServiceSettings)


def started(service: str, kind: type[S]) -> S:
    """The settings of a process of this service. Raises ConfigurationError."""
    settings = load_settings(kind)
    configure_logs(
        service=service,
        instance=settings.instance_id,
        level=settings.log_level,
        json=settings.log_json,
    )
    return settings
