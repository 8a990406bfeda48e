"""The rules for agents, by name. A test compares their texts with ``docs/reference/agent_protocol.md``."""

from typing import Final

import msgspec

RULES: Final[dict[str, str]] = {
    "encoding": "Acks and reports are Avro in single-object encoding, of a schema in `schemas/`.",
    "joins": "Started with an empty directory, it asks to join, and becomes a member once it has streamed.",
    "no-ack-before-the-row": "No ack before the log has the node's row.",
    "host-id-is-the-rows": "Acks carry the host id that the node's row has, also after a restart.",
    "ack-is-of-this-log": "An ack's `state_id` and `log_id` are those of its epoch in this log.",
    "ack-tells-what-is-applied": "An ack's `version` and `fence_version` are those of its epoch.",
    "ack-goes-up": "`sequence` rises, over all boots; within a boot epoch, version and fence never fall.",
    "boot-id-goes-up": "Each start has a `boot_id` that sorts after those before it.",
    "acknowledged-is-kept": "After a restart no ack tells an older version or fence than was told before.",
    "version-in-use": "`oldest_version_in_use` is at most `version`.",
    "session-ends": "A session that has closed is not in `sessions_in_use` for longer than five seconds.",
    "session-is-reported": "While work runs, its session is in `sessions_in_use`.",
    "heartbeat": "While it runs and can read the log, acks come at least every five seconds.",
    "reads-on": "Each epoch is acknowledged within five seconds.",
    "order-is-answered": "An order that is accepted is reported on within five seconds.",
    "report-names-its-order": "A report has the term, index, kind, session, request and log of an order that"
    " this node was sent.",
    "old-term-is-refused": "An order of an older term than the log's is neither done nor reported on.",
    "old-index-is-refused": "Within a term, an order with a lower index than one taken before gets no answer.",
    "other-log-is-ignored": "An order that speaks of another log is neither done nor reported on.",
    "closed-session-is-refused": "Work under a session that is not open is reported as failed, never as done.",
    "done-is-answered-again": "Work that is done is not done again: who orders it anew hears SUCCESS.",
    "success-is-final": "After SUCCESS of a piece of work no FAILED of it is reported.",
    "failure-says-why": "A FAILED report has an `error`.",
    "tablets-move": "A tablet that moves is streamed; then the node that it went to serves it, and the one that"
    " it left does not.",
    "resize-is-prepared": "Acks name in `prepared` the open requests that split or merge tablets, once its cuts"
    " are there.",
    "truncates": "Ordered to truncate, it deletes what the data held, and reports SUCCESS; nobody"
    " reads it later.",
    "leaves": "A member that is asked to leave hands its ranges over, and the others carry that out.",
    "replaces": "Started to replace a dead node, the process takes its place.",
    "recovered-log-is-left": "Once its log goes on as another one, it acknowledges nothing by the old one.",
    "wiped-disk-is-refused": "Started with an empty directory under a member's name, it sends no acks.",
    "older-copy-is-refused": "Started with its directory as it was before its last start, it sends no acks.",
    "current-request-is-served": "A request of the current version for a range of the node would be served.",
    "stale-request-is-refused": "A request older than its range's fenced version is answered `stale_version`.",
    "newer-request-waits": "A request of a version that was not read yet is answered `behind`, not served.",
    "foreign-request-is-refused": "A request for a token that the node does not replicate is answered"
    " `not_a_replica`.",
    "request-of-a-closed-session": "A request under a session that is not open is answered `session_closed`.",
    "newer-columns-are-read": "A row of a table version that was not read yet is served after it was read, or"
    " answered `behind`.",
    "newer-version-is-answered": "A row of an older table version is served, and the answer has the"
    " newer version.",
    "missing-column-is-refused": "A row with a dropped or unknown column is answered 400, with the"
    " table's version.",
    "truncated-data-is-refused": "A request for data that was truncated away is answered `stale_version`.",
    "values-are-kept": "A value that all replicas acknowledged is read from each replica that its range has"
    " later: after streams, cleanups, splits and `kill -9`.",
    "newer-value-stays": "Of two values of a key the newer one stays, whichever comes first and however often.",
    "given-away-is-deleted": "After the cleanup a node has no rows of ranges of which it is no replica.",
    "request-for-another-node": "A request that names another node is answered 421 `other_node`.",
    "request-of-another-log": "A request that names another log is answered 409 `other_log`.",
}
"""Text of each rule. The kit's scenes check all of them.

The rules for requests are checked only where the process can be asked.
"""


class Broken(msgspec.Struct, frozen=True):
    """A broken rule, the node that broke it, and how."""

    rule: str
    node_id: str
    what: str

    def line(self) -> str:
        return f"{self.rule}: {self.node_id}: {self.what}"


class Wrong(Exception):
    """Ends a run: a rule is broken, and the following scenes depend on it."""

    def __init__(self, rule: str, node_id: str, what: str) -> None:
        self.broken = Broken(rule, node_id, what)
        super().__init__(self.broken.line())
