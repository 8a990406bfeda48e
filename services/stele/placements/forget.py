"""``python -m stele.placements.forget CLUSTER``: delete one cluster from the tables and the topic.

Use it when the name belongs to another cluster now: founded again, or recovered from an epoch
before that of the tables. It uses the settings of the job, which reads the cluster from the
beginning when it is restarted. Deleting only the rows would not suffice: the tables and the topic
also store their epochs.
"""

import re
import sys
from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from stele.placements import events_table, reports_table
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.settings import PlacementsSettings
from stele.placements.store import TableStore, head_of_cluster, in_clusters
from stele.placements.tables import (
    EVENTS,
    MOVEMENTS,
    PROGRESS,
    REPORTS,
    SCHEMAS,
    attempts,
    existing_table,
)
from stele.placements.topic import PLACEMENTS, TopicWriter, framing_of
from stele.placements.watch import CLUSTER_NAME
from stele.runtime.settings import ConfigurationError, load_settings

NUMBERED: Final = {EVENTS: events_table.APP, REPORTS: reports_table.APP}
"""Tables with numbered commits. A running job detects the change by the next number."""
_EXIT_USAGE: Final = 64


def forget(store: TableStore, cluster: str) -> None:
    """Delete the cluster.

    ``events``, from which the others follow, is last, so a repeated call completes it.

    Raises Conflict, TableLost, DeltaError, OSError.
    """
    for name in sorted(SCHEMAS, key=lambda name: name == EVENTS):
        if store.is_there(name):
            _forget(store, name, cluster)


def _forget(store: TableStore, name: str, cluster: str) -> None:
    for _ in attempts(store, name):
        table = existing_table(store, name)
        properties = CommitProperties(
            app_transactions=_transactions(table, name, cluster), max_commit_retries=0
        )
        try:
            write_deltalake(
                table,
                SCHEMAS[name].empty_table(),
                mode="overwrite",
                predicate=in_clusters([cluster]),
                commit_properties=properties,
            )
        except CommitFailedError:
            continue
        return


def _transactions(table: DeltaTable, name: str, cluster: str) -> list[Transaction]:
    if name in (PROGRESS, MOVEMENTS):
        return []
    if name in NUMBERED:
        number = table.transaction_version(NUMBERED[name]) or 0
        return [Transaction(NUMBERED[name], number + 1)]
    return [Transaction(head_of_cluster(cluster), 0)]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not re.fullmatch(CLUSTER_NAME, arguments[0]):
        sys.stderr.write("Usage: python -m stele.placements.forget CLUSTER\n")
        return _EXIT_USAGE
    (cluster,) = arguments
    try:
        settings = load_settings(PlacementsSettings)
    except ConfigurationError as error:
        sys.stderr.write(f"{error.title}: {error}\n")
        return 78
    store = settings.store()
    forget(store, cluster)
    framing = framing_of(settings.placement_schema_ids)
    rows = TopicWriter(settings.brokers, cluster, PLACEMENTS, framing).clear()
    TopicWriter(settings.brokers, cluster, SCHEMA_TOPIC).clear()
    print(
        f"The tables at {store} and the topics of placements and schema hold nothing of {cluster}"
        f" ({rows} placements were there)."
    )
    print("Start the job again: it starts this cluster from the beginning.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
