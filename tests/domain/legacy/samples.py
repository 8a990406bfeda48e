"""What a cluster of Cassandra 5.0.2 printed: six nodes in three dcs, four tokens each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stele.domain.legacy.joined import Joined, Texts, join
from stele.domain.legacy.texts.describecluster import parse_describecluster
from stele.domain.legacy.texts.describering import parse_describering
from stele.domain.legacy.texts.ring import parse_ring
from stele.domain.legacy.texts.rows import parse_peers
from stele.domain.legacy.texts.status import parse_status

FOLDER = Path(__file__).parent / "samples" / "cassandra_5"
KEYSPACES = ("audit", "orders", "system_auth", "system_distributed", "system_traces")
ALIKE = {"system_distributed": "system_auth", "system_traces": "system_auth"}
"""Keyspaces of the same replication: one text is kept of them."""


def sample(name: str) -> str:
    return (FOLDER / name).read_text()


def joined(kind: str = "", *, keyspaces: Iterable[str] = KEYSPACES) -> Joined:
    """The texts as they were printed; of ``kind`` down or joining those that differ then."""
    suffix = f"-{kind}" if kind else ""
    cluster = f"describecluster{'' if kind == 'joining' else suffix}.txt"
    described = {k: f"describering/{ALIKE.get(k, k)}.txt" for k in keyspaces}
    return join(
        Texts(
            status=parse_status(sample(f"status{suffix}.txt")),
            ring=parse_ring(sample(f"ring{suffix}.txt")),
            cluster=parse_describecluster(sample(cluster)),
            describering={k: parse_describering(sample(f)) for k, f in described.items()},
            peers=() if kind else parse_peers(sample("peers_v2.json")),
        )
    )
