"""Kafka settings of commands that read the log themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stele.cli.errors import UsageError
from stele.cli.places import read_stack_file, stack_directory, told_by_shell
from stele.runtime.settings import ConfigurationError, KafkaSettings, load_settings

VARIABLE: Final = "STELE_KAFKA_BOOTSTRAP"


def kafka_at(servers: str, environment: Mapping[str, str] = os.environ) -> KafkaSettings:
    """Return the settings for brokers at these addresses, with other STELE_KAFKA_* variables.

    Raises UsageError.
    """
    try:
        return load_settings(KafkaSettings, {**environment, VARIABLE: servers})
    except ConfigurationError as error:
        raise UsageError(str(error), "Correct the variable in this shell.") from error


def told_kafka(typed: Path | None) -> KafkaSettings | None:
    """Return the brokers of the given stack, else of the shell, else of the default stack.

    The default stack uses no TLS and no SASL. None: no brokers are configured. Raises UsageError.
    """
    stack, shell = read_stack_file(stack_directory(typed)), told_by_shell(typed)
    of_stack = "" if stack is None else stack.environment.get(VARIABLE, "")
    servers = shell.get(VARIABLE, "") or of_stack
    if servers != of_stack:
        return kafka_at(servers, shell)
    return KafkaSettings(kafka_bootstrap=servers) if servers else None
