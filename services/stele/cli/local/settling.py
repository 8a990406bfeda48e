"""Whether a node that was started stays, by which request it joins, and why a process is not started again."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.local.table import last_line
from stele.cli.places import Places, Service, find_places, read_stack_file
from stele.cli.reading import Reading
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState
from stele.stack.folders import is_node
from stele.stack.supervisor import EXIT_BAD_CONFIGURATION, RESTARTS_PER_MINUTE, State

SETTLE_S: Final = 10.0
"""A node asks to join, is refused and ends within two or three seconds, on a busy machine too."""
POLL_S: Final = 0.2
LOOK_TIMEOUT_S: Final = 1.0
ACCEPTS: Final = re.compile(r"with STELE_ACCEPT_(OLDER_COPY|LOST_EPOCHS)=([0-9a-f]+)")
"""What a node says it would be started with."""


def settle(directory: Path, name: str, limit_s: float = SETTLE_S) -> str:
    """The id of the request by which a started node joins; empty for a member once it is well, and where it is
    not known yet.

    Raises CliError when it ends since it cannot run as it is: it announces an address before it knows.
    """
    end_s = time.monotonic() + limit_s
    while True:
        now = read_stack_file(directory)
        service = None if now is None else now.service(name)
        if service is not None and service.state == State.GIVEN_UP:
            raise CliError(*why_given_up(directory, service))
        node = _row(directory, name)
        if node is not None and node.state not in (NodeState.LEFT, NodeState.NORMAL):
            return node.request_id
        if node is not None and node.state is NodeState.NORMAL and _is_well(service):
            return ""
        if time.monotonic() > end_s:
            return ""
        time.sleep(POLL_S)


def _is_well(service: Service | None) -> bool:
    """Whether it says so itself."""
    if service is None or not service.pid:
        return False
    client = Client(Places({}, ""), timeout_s=LOOK_TIMEOUT_S)
    try:
        client.get_bytes(f"{service.url}/healthz")
    except CliError:
        return False
    finally:
        client.close()
    return True


def _row(directory: Path, name: str) -> Node | None:
    """The node as the log has it; None as long as it is not there, or nobody tells."""
    try:
        places = find_places((), directory, {})
        client = Client(places, timeout_s=LOOK_TIMEOUT_S, retry_for_s=LOOK_TIMEOUT_S)
        try:
            nodes = Reading(client, level="local").nodes()
        finally:
            client.close()
    except CliError:
        return None
    return next((node for node in nodes if node.node_id == name), None)


def why_given_up(directory: Path, service: Service) -> tuple[str, str]:
    """Why a process is not started again by itself, and what to do."""
    name, status = service.name, service.exit_code
    last = last_line(directory, name)
    if status == EXIT_BAD_CONFIGURATION:
        why = f"{name} does not run: as it is it cannot (exit status {status})"
    else:
        often = f"more than {RESTARTS_PER_MINUTE} times within a minute"
        why = f"{name} does not run: it ended {often}, the last time with exit status {status}"
    start = f"`stele stack start {name}` tries again once the reason is mended."
    remove = f"`stele stack remove {name}` does without it if it is no member"
    another = "`stele stack add-node` starts another"
    if found := ACCEPTS.search(last):
        option = f"--accept-{found[1].lower().replace('_', '-')} {found[2]}"
        start += f" `stele stack start {name} {option}` accepts the loss."
        another = f"`stele stack add-node --replace {name}` puts a new node in its place"
    said = last.rstrip(".") or f"see `stele stack logs {name}`"
    return f"{why}: {said}.", f"{remove}, {another}. {start}" if is_node(name) else start
