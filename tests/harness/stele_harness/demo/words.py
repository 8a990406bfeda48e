"""What the demo says for those who see it for the first time: terms, what a check proves, what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

TERMS: Final[dict[str, str]] = {
    "epoch": "An epoch is one entry of the log: each change has one, and the same for everybody.",
    "quorum": "A quorum is a majority of a key's replicas: a read and a write at QUORUM meet in one of them.",
    "version": "A version numbers the choices of replicas; a request carries the one that it was routed by.",
    "session": "Data is streamed under a session: once it is closed, what comes late under it has no effect.",
    "fence": "The fence is a version: replicas refuse requests with an older one for ranges that changed.",
    "tablet": "A tablet is a piece of one table that can be split, merged and moved by itself.",
}

PROVES: Final[dict[str, str]] = {
    "a node joins under load while the coordinator is killed": (
        "an operation goes on from the log where its driver died"
    ),
    "a node leaves under load while the metadata-log is killed": (
        "the log can be without its server in the middle of an operation"
    ),
    "a node of another cluster is refused": "a wrong address cannot mix two clusters",
    "a leave below the replication factor is refused": "nobody can take away the last copies",
    "a node that has left is refused": "a request that comes twice does no harm",
    "a dead node is replaced under load": "what a machine had is streamed from the other copies",
    "two nodes join as one transition": "data moves once for both, not twice",
    "a dead node is removed under load": "the others make up for the copies that are gone",
    "of two requests for the same ranges one waits for the other": "operations on the same data do not mix",
    "columns are added, renamed and dropped, and no request fails": (
        "programs and tables can be changed one after the other"
    ),
    "no acknowledged row is lost while columns change": "a change of columns rewrites no data",
    "every acknowledged row is in the change log, in order": (
        "other systems can follow the table, also after its tablets have moved"
    ),
    "a table is split while it is written": "the number of pieces changes without a stop",
    "a new node is given its share of the tablets": "the balancer fills what is empty",
    "a node that leaves gives its tablets away first": "nothing leaves with the last copy",
    "every row of a table is read back after its tablets were split and moved": "no move lost a row",
    "no read went back behind an acknowledged write": "old and new replicas never disagree unnoticed",
    "no acknowledged write is lost": "what the client was told is true, whatever was killed meanwhile",
    "every file is read back with its SHA-256 through every node": "all bytes are there, on any way in",
    "no write with a fenced-out version is accepted": (
        "a client that slept through the change cannot write to those who own the data no more"
    ),
    "every process has the same state at the same epoch": "there is one truth, and everybody has it",
    "the compacted topic holds the placements of the newest epoch": (
        "others can follow who owns what from Kafka alone"
    ),
    "Spark's Delta table holds the placements of the newest epoch": "tables for queries are not stale",
    "Spark's history table gives the placements of past epochs": "the past can be asked, too",
    "a replay of the whole log gives the same state": "the log is all there is to keep",
}
"""By the name of the check."""

Suggestion = tuple[str, str]
"""A command, and what it shows."""


def take_up(directory: Path) -> str:
    """What a shell types to ask the stack over ``directory`` from then on, whichever it asked before."""
    where = f"export STELE_DIR={shlex.quote(str(directory))}"
    return "; ".join([*_on_the_path(), where, 'eval "$(stele stack env)"'])


def _on_the_path() -> list[str]:
    """What puts the command on the PATH of a shell that does not find it."""
    if shutil.which("stele"):
        return []
    return [f"source {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}"]


def suggestions(played: set[str]) -> list[Suggestion]:
    """For the cluster that these steps leave behind."""
    has_library, has_table = "library" in played, "tablets" in played
    has_columns = "columns" in played
    found = [
        ("stele status", "the cluster at a glance"),
        ("stele epochs --last 30", "what happened, who asked, why"),
    ]
    if has_library:
        found += [
            ("stele ring library", "who reads and writes which range"),
            ("stele get library json/decoder.py", "a value"),
        ]
    else:
        found += [
            ("stele keyspace create shop --replication dc1=3", "a place for data"),
            ("echo red | stele put shop apple -", "a value, on a quorum"),
            ("stele get shop apple", "and back"),
        ]
    if has_table:
        found.append(("stele tablet list shelves.digests", "where the pieces of a table are"))
    if has_columns:
        found += [
            ("stele schema show loans", "a table with columns, as CQL"),
            ("stele cdc tail loans.counts --count 3", "the first changes of its rows"),
        ]
    return [
        *found,
        ("stele stack add-node --rack r2", "one more node"),
        ("stele console", "the page that shows it: now, and at any epoch of its past"),
        ("stele watch", "epochs as they happen"),
        ("stele stack down --purge", "stop it and delete its data"),
    ]


NEXT: Final[tuple[Suggestion, ...]] = (
    ("stele demo --keep", "the same, and the cluster stays for you"),
    ("stele drill", "lose the log under load, and recover it"),
    ("stele stack up --detach", "a cluster of your own, in .stele"),
    ("stele console", "the page that shows it: now, and at any epoch of its past"),
    (
        "docs/get-started/first_store.md",
        "your own store as a member of it, in a quarter of an hour",
    ),
    ("docs/README.md", "your store, operation, analysis: where to read on"),
)
"""For who has seen it to its end; each command needs no others than those before it."""


def what_next() -> list[Suggestion]:
    """``NEXT``, for this shell."""
    return [*((line, "puts stele on the PATH") for line in _on_the_path()), *NEXT]


def lines(found: list[Suggestion] | tuple[Suggestion, ...]) -> list[str]:
    """In two columns."""
    width = max(len(command) for command, _ in found)
    return [f"  {command:<{width}}  {text}" for command, text in found]
