"""A legacy cluster from the texts that nodetool and cqlsh printed: files are read here, texts in the core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stele.cli.errors import CliError, UsageError
from stele.domain.legacy.joined import Joined, Texts, join
from stele.domain.legacy.texts.describecluster import parse_describecluster
from stele.domain.legacy.texts.describering import Describering, parse_describering
from stele.domain.legacy.texts.lines import TextError
from stele.domain.legacy.texts.ring import parse_ring
from stele.domain.legacy.texts.rows import Peer, parse_keyspaces, parse_peers
from stele.domain.legacy.texts.status import parse_status

T = TypeVar("T")


def of_file(path: Path, parse: Callable[[str], T]) -> T:
    """Raises CliError, which names the file and the line."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is no text: {error.reason} at byte {error.start}.") from error
    except TextError as error:
        raise CliError(
            f"{path}, {error}.", "Take the text anew, and change nothing in it."
        ) from error


def of_files(
    ring: Path,
    status: Path,
    cluster: Path,
    describering: tuple[str, ...],
    schema: Path | None,
    peers: tuple[Path, ...],
) -> Joined:
    """Raises CliError."""
    rows = list[Peer]()
    for path in peers:
        rows += of_file(path, parse_peers)
    return join(
        Texts(
            status=of_file(status, parse_status),
            ring=of_file(ring, parse_ring),
            cluster=of_file(cluster, parse_describecluster),
            describering=_described(describering),
            keyspaces=None if schema is None else of_file(schema, parse_keyspaces),
            peers=tuple(rows),
        )
    )


def _described(given: tuple[str, ...]) -> dict[str, Describering]:
    """``KEYSPACE=FILE`` each, as the text itself does not name its keyspace."""
    found = dict[str, Describering]()
    for each in given:
        keyspace, equals, file = each.partition("=")
        if not equals or not keyspace or not file:
            raise UsageError(
                f"--describering {each} names no keyspace.",
                "Write --describering KEYSPACE=FILE: the text does not say which keyspace it is of.",
            )
        if keyspace in found:
            raise UsageError(f"--describering names keyspace {keyspace} twice.", "Name it once.")
        found[keyspace] = of_file(Path(file), parse_describering)
    return found
