"""The generated part of docs/reference/settings.md: ``python -m tests.docs.settings_page``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from msgspec import NODEFAULT, Meta
from msgspec.structs import FieldInfo, fields

from stele.agent.settings import AgentSettings
from stele.catch_up.settings import CatchUpSettings
from stele.cdc_connector.settings import CdcConnectorSettings
from stele.console.settings import ConsoleSettings
from stele.coordinator.settings import CoordinatorSettings
from stele.domain.model.settings import KNOWN
from stele.metadata_log.settings import MetadataLogSettings
from stele.node.settings import NodeSettings
from stele.placements.settings import PlacementsSettings, SqlServerSettings
from stele.runtime.settings import KafkaSettings, ServiceSettings, variable_of
from stele.session_guard.settings import SessionGuardSettings
from stele.tablet_balancer.settings import BalancerSettings
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "settings.md"
CONSOLE = "console, `stele`"
COMMON: Mapping[str, str] = {
    "cluster": "all",
    "instance_id": "all",
    "http_host": "all",
    "http_port": "all",
    "http_tls_certificate_file": "all",
    "http_tls_key_file": "all",
    "http_callers_file": "metadata-log, catch-up, console",
    "kafka_replication_factor": "all but the console",
    "development": "metadata-log",
    "redis_url": "session-guard, metadata-log",
    "redis_cluster": "session-guard, metadata-log",
    "catch_up_urls": "all, `stele`",
    "metadata_log_urls": CONSOLE,
    "coordinator_urls": CONSOLE,
    "session_guard_urls": "metadata-log, console, `stele`",
    "tablet_balancer_urls": CONSOLE,
    "placements_urls": CONSOLE,
    "heartbeat_timeout_s": "coordinator, session-guard, tablet-balancer",
    "request_timeout_s": "metadata-log",
    "kafka_timeout_s": "metadata-log",
    "log_level": "all",
    "log_json": "all",
}
"""Readers of the common settings, in the order of the page."""


class Kind(NamedTuple):
    """A kind of process, its settings class, and the class whose fields are listed elsewhere."""

    title: str
    settings: type[KafkaSettings]
    beside: type[KafkaSettings]
    text: str = ""


KINDS = (
    Kind("metadata-log", MetadataLogSettings, ServiceSettings),
    Kind("coordinator", CoordinatorSettings, ServiceSettings),
    Kind("session-guard", SessionGuardSettings, ServiceSettings),
    Kind("tablet-balancer", BalancerSettings, ServiceSettings),
    Kind("catch-up", CatchUpSettings, ServiceSettings),
    Kind("console", ConsoleSettings, ServiceSettings),
    Kind("nodes", AgentSettings, ServiceSettings, "Of every member, whatever its store is."),
    Kind("the store for trials", NodeSettings, AgentSettings, "Beside those of nodes."),
    Kind("cdc-connector", CdcConnectorSettings, ServiceSettings),
    Kind("placements", PlacementsSettings, ServiceSettings),
    Kind(
        "placements' SQL server",
        SqlServerSettings,
        PlacementsSettings,
        "Beside those of placements.",
    ),
)
COMPUTED_DEFAULTS: Mapping[str, str] = {
    "instance_id": "machine and process id",
    "spark_jars": "where `make setup` puts them",
}
"""Defaults that are computed at the start."""


def sections() -> Iterator[str]:
    yield "### All processes\n\n"
    yield "| variable | default | may be | what it is | who reads it |\n|---|---|---|---|---|\n"
    common = {each.name: each for each in own_fields(ServiceSettings, KafkaSettings)}
    for name, readers in COMMON.items():
        yield f"{_row(common[name])} {readers} |\n"
    yield "\n### Kafka\n\nAll but the console read these; [what goes together](../guides/secure.md#kafka).\n\n"
    yield from _table(own_fields(KafkaSettings, None))
    for kind in KINDS:
        yield f"\n### {kind.title[0].upper()}{kind.title[1:]}\n\n"
        if kind.text:
            yield f"{kind.text}\n\n"
        yield from _table(own_fields(kind.settings, kind.beside))
    yield "\n## Settings in the log\n\n"
    yield "| setting | default | may be | what it is |\n|---|---|---|---|\n"
    for name, setting in sorted(KNOWN.items()):
        yield f"| `{name}` | {setting.default} | {setting.wanted()} | {setting.counts} |\n"
    yield "\n"


def own_fields(kind: type[Any], beside: type[Any] | None) -> list[FieldInfo]:
    """Return the fields of ``kind`` that ``beside`` does not have."""
    known = {each.name for each in fields(beside)} if beside else set()
    return [each for each in fields(kind) if each.name not in known]


def _table(rows: list[FieldInfo]) -> Iterator[str]:
    yield "| variable | default | may be | what it is |\n|---|---|---|---|\n"
    for each in rows:
        yield f"{_row(each)}\n"


def _row(setting: FieldInfo) -> str:
    kind, meta = _parts(setting.type)
    cells = f"`{variable_of(setting.name)}`", _default(setting), _bounds(kind, meta)
    return f"| {' | '.join((*cells, str(meta.description)))} |"


def _parts(kind: Any) -> tuple[Any, Meta]:
    """Return the type and its metadata."""
    bare, meta = get_args(kind)
    return bare, meta


def _bounds(kind: Any, meta: Meta) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind) if word)
    if kind is bool:
        return "`true`, `false`"
    least, most = meta.ge, meta.le
    if most is not None:
        return f"{f'{least:,g}' if least is not None else 'above 0,'} to {most:,}"
    return f"{least:,} and more" if least is not None else ""


def _default(setting: FieldInfo) -> str:
    if setting.name in COMPUTED_DEFAULTS:
        return COMPUTED_DEFAULTS[setting.name]
    default = setting.default
    assert default is not NODEFAULT, f"{setting.name} has no default: add it to COMPUTED_DEFAULTS"
    if default in ("", (), None):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
