"""Answers of metadata-log about epochs, and about the whole state at one; see ``metadata_log``."""

from collections.abc import Mapping
from typing import Any

import msgspec

from stele.domain.facts import AnyFact
from stele.domain.model.archive import ArchiveSummary, LogReader, ReplicaSummary
from stele.domain.model.cdc import GenerationSummary
from stele.domain.model.cluster import Incarnation
from stele.domain.model.commits import Commits
from stele.domain.model.membership import Node
from stele.domain.model.overrides import OverridesImage
from stele.domain.model.requests import Request
from stele.domain.model.schema import Balancing, Keyspace, Table
from stele.domain.model.schema_objects import (
    Aggregate,
    Function,
    SchemaVersion,
    TableSchema,
    UserType,
)
from stele.domain.model.services import Service
from stele.domain.model.table_snapshots import RestoreSummary, TableSnapshot
from stele.domain.model.topology import Coordinator, Versions
from stele.domain.model.transitions import Transition
from stele.domain.ring.ranges import RangeReplicas
from stele.runtime.answers.metadata_log import AtEpoch


class EpochAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of the log. Ids of states and logs are in hex."""

    prev_state_id: str
    state_id: str
    log_id: str
    witness_state_id: str
    epoch: int
    witness_epoch: int
    request_id: str
    command: str
    facts: tuple[AnyFact, ...]
    command_digest: str
    actor: str
    reason: str
    origin: str
    at_ms: int
    required_features: tuple[str, ...]


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The matches among the epochs that this call examined, newest first."""

    newest: int
    """The newest epoch of the log."""
    looked_at: int
    next_before: int
    """``before`` of the next call; 0: all epochs were examined."""
    epochs: tuple[EpochAnswer, ...]
    begins: int = 0
    """Epochs up to this one are not kept; 0: all are kept."""
    stores: tuple[str, ...] = ()
    """Stores that may have epochs that are not kept."""


class ChangesAnswer(AtEpoch, frozen=True, kw_only=True):
    """The changes of one epoch, by section of the diff. Placements have the number of rows."""

    command: str
    request_id: str
    actor: str
    at_ms: int
    changes: dict[str, Any]


class StateAnswer(AtEpoch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole state at an epoch."""

    hash: str
    cluster: str
    cluster_id: str
    log_id: str
    incarnations: tuple[Incarnation, ...]
    """The logs before each recovery, oldest first."""
    commits: Commits
    overrides: OverridesImage
    topology: Versions
    coordinator: Coordinator
    transitions: tuple[Transition, ...]
    nodes: tuple[Node, ...]
    requests: tuple[Request, ...]
    balancing: Balancing
    keyspaces: tuple[Keyspace, ...]
    tables: tuple[Table, ...]
    schema_version: SchemaVersion
    table_schemas: tuple[TableSchema, ...]
    types: tuple[UserType, ...]
    functions: tuple[Function, ...]
    aggregates: tuple[Aggregate, ...]
    placements: Mapping[str, tuple[RangeReplicas, ...]]
    features: tuple[str, ...]
    settings: Mapping[str, str]
    services: tuple[Service, ...]
    repairs: dict[str, tuple[int, ...]]
    """By the table's id, the time of the last repair of each tablet; see ``domain.model.repairs``."""
    restricted_repairs: dict[str, tuple[int, ...]]
    """The same for a repair that runs among some replicas only."""
    table_snapshots: tuple[TableSnapshot, ...]
    table_restores: tuple[RestoreSummary, ...]
    cdc_generations: tuple[GenerationSummary, ...]
    catch_up_replicas: tuple[ReplicaSummary, ...]
    log_readers: tuple[LogReader, ...]
    archive: ArchiveSummary


class DiffAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The difference between two epochs, by domain; see ``domain.view.diff``."""

    from_epoch: int
    to_epoch: int
    cluster: dict[str, Any]
    commits: dict[str, Any]
    overrides: dict[str, Any]
    topology: dict[str, Any]
    coordinator: dict[str, Any]
    transitions: dict[str, Any]
    nodes: dict[str, Any]
    requests: dict[str, Any]
    balancing: dict[str, Any]
    keyspaces: dict[str, Any]
    tables: dict[str, Any]
    schema_version: dict[str, Any]
    table_schemas: dict[str, Any]
    types: dict[str, Any]
    functions: dict[str, Any]
    aggregates: dict[str, Any]
    placements: dict[str, Any]
    features: dict[str, Any]
    settings: dict[str, Any]
    services: dict[str, Any]
    repairs: dict[str, Any]
    restricted_repairs: dict[str, Any]
    table_snapshots: dict[str, Any]
    table_restores: dict[str, Any]
    cdc_generations: dict[str, Any]
    catch_up_replicas: dict[str, Any]
    log_readers: dict[str, Any]
    archive: dict[str, Any]
