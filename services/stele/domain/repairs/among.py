"""Whose replicas take part in a repair (Scylla's hosts_filter and dcs_filter)."""

from typing import Final, NamedTuple


class Among(NamedTuple):
    """Only replicas on these nodes, and in these dcs, take part; without any all do."""

    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()

    def has(self, node_id: str, dc: str) -> bool:
        return (not self.nodes or node_id in self.nodes) and (not self.dcs or dc in self.dcs)

    def words(self) -> str:
        """As it follows what is repaired; empty where all take part."""
        parts = [", ".join(self.nodes), f"of {', '.join(self.dcs)}" if self.dcs else ""]
        named = " ".join(filter(None, parts))
        return f" among replicas {'on ' if self.nodes else ''}{named}" if named else ""


ALL: Final = Among()
