"""Requests of nodes in stories. Tokens, racks and shards are chosen here."""

from typing import Final

from stele.domain import commands

DC: Final = "dc1"


def join_command(
    name: str, rack: str, num_tokens: int, tokens: tuple[int, ...] = (), shards: int = 1
) -> commands.Join:
    return commands.Join(
        node_id=name,
        cluster="sim",
        address=f"http://{name}",
        dc=DC,
        rack=rack,
        num_tokens=num_tokens,
        initial_tokens=tokens,
        host_id=f"host-{name}",
        shards=shards,
    )


def replace_command(name: str, dead: str, rack: str, shards: int = 1) -> commands.Replace:
    return commands.Replace(
        node_id=name,
        replaced_id=dead,
        cluster="sim",
        address=f"http://{name}",
        dc=DC,
        rack=rack,
        host_id=f"host-{name}",
        shards=shards,
    )
