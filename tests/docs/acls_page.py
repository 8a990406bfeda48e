"""The ACLs of docs/guides/secure.md as bindings for the brokers."""

from __future__ import annotations

import itertools
import re
import shlex
from itertools import product

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "guides" / "secure.md"
COMMAND = "kafka-acls.sh --add "
_RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}


def acls_of(user: str, cluster: str) -> list[AclBinding]:
    """Return the page's ACLs of one user, with another cluster name."""
    lines = PAGE.read_text().splitlines()
    given = [shlex.split(line.removeprefix(COMMAND)) for line in lines if line.startswith(COMMAND)]
    options = [[*zip(words[::2], words[1::2], strict=True)] for words in given]
    found = [
        binding
        for each in options
        if ("--allow-principal", f"User:{user}") in each
        for binding in _bindings(each, cluster)
    ]
    assert found, f"{PAGE} has no ACLs of {user}"
    return found


def kinds() -> list[str]:
    """Return the users of the table: one per kind of process."""
    return [*_rows()]


def acls_of_kind(kind: str, cluster: str) -> list[AclBinding]:
    """Return the ACLs of a row of the table, and those that the text gives to every kind."""
    reads, writes, groups, more = _rows()[kind]

    def allow(
        kind_of: ResourceType, name: str, operation: AclOperation, *, prefixed: bool = False
    ) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        user, allowed = f"User:{kind}", AclPermissionType.ALLOW
        return AclBinding(kind_of, name, pattern, user, "*", operation, allowed)

    def of_topics(names: list[str], operation: AclOperation) -> list[AclBinding]:
        return [allow(ResourceType.TOPIC, f"stele.{cluster}.{name}", operation) for name in names]

    of_epochs = [operation for name, operation in _OPERATIONS.items() if f"`{name}`" in more]
    found = [
        allow(ResourceType.TOPIC, f"stele.{cluster}.", AclOperation.DESCRIBE, prefixed=True),
        allow(ResourceType.GROUP, "stele-unused", AclOperation.DESCRIBE),
        *of_topics(_names(reads), AclOperation.READ),
        *of_topics(_names(writes), AclOperation.WRITE),
    ]
    for name in _names(groups):
        group = f"stele.{cluster}.{name}"
        found.append(allow(ResourceType.GROUP, group, AclOperation.READ, prefixed=True))
    if "--transactional-id" in more:
        for flow in ("placements", "schema"):
            writer = f"stele.{cluster}.{flow}-writer"
            assert writer.replace(cluster, "CLUSTER") in more
            found += [allow(ResourceType.TRANSACTIONAL_ID, writer, each) for each in of_epochs]
    else:
        found += [allow(ResourceType.TOPIC, f"stele.{cluster}.epochs", each) for each in of_epochs]
    return found


def _rows() -> dict[str, list[str]]:
    lines = PAGE.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| user |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 2 :])
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {first.strip("`"): rest for first, *rest in cells}


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _bindings(options: list[tuple[str, str]], cluster: str) -> list[AclBinding]:
    by_name = dict(options)
    kinds = [_RESOURCES[name] for name in by_name if name in _RESOURCES]
    names = [value.replace("CLUSTER", cluster) for name, value in options if name in _RESOURCES]
    pattern = {
        "prefixed": ResourcePatternType.PREFIXED,
        "literal": ResourcePatternType.LITERAL,
    }[by_name.get("--resource-pattern-type", "literal")]
    operations = [_OPERATIONS[value] for name, value in options if name == "--operation"]
    assert len(kinds) == len(names) == 1
    return [
        AclBinding(
            kind,
            name,
            pattern,
            by_name["--allow-principal"],
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for (kind, name), operation in product(zip(kinds, names, strict=True), operations)
    ]
