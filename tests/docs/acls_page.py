"""The ACLs that docs/operations/security.md gives, as the brokers take them."""

from __future__ import annotations

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

PAGE = REPOSITORY / "docs" / "operations" / "security.md"
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
    """Those of the page for one of its users, with another name of the cluster."""
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


def _bindings(options: list[tuple[str, str]], cluster: str) -> list[AclBinding]:
    said = dict(options)
    kinds = [_RESOURCES[name] for name in said if name in _RESOURCES]
    names = [value.replace("CLUSTER", cluster) for name, value in options if name in _RESOURCES]
    pattern = {
        "prefixed": ResourcePatternType.PREFIXED,
        "literal": ResourcePatternType.LITERAL,
    }[said.get("--resource-pattern-type", "literal")]
    operations = [_OPERATIONS[value] for name, value in options if name == "--operation"]
    assert len(kinds) == len(names) == 1
    return [
        AclBinding(
            kind, name, pattern, said["--allow-principal"], "*", operation, AclPermissionType.ALLOW
        )
        for (kind, name), operation in product(zip(kinds, names, strict=True), operations)
    ]
