"""Brokers of the commands that read the log, and the shell variables for them."""

from pathlib import Path

import msgspec
import pytest

from stele.cli.commands.log_offline import kafka_at, told_kafka
from stele.cli.errors import UsageError
from stele.cli.places import STACK_FILE, RedisProcess, StackFile

SECURED = {"STELE_KAFKA_SECURITY_PROTOCOL": "SSL", "STELE_KAFKA_BOOTSTRAP": "far:1"}


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a stack, in a shell with variables for brokers with TLS."""
    for name, text in SECURED.items():
        monkeypatch.setenv(name, text)
    written = StackFile(
        pid=1,
        environment={"STELE_KAFKA_BOOTSTRAP": "near:1"},
        brokers=(),
        redis=RedisProcess(url="redis://near:2/0"),
        services=(),
    )
    (tmp_path / STACK_FILE).write_bytes(msgspec.json.encode(written))
    return tmp_path


def test_brokers_from_shell_or_option_use_the_tls_settings_of_the_shell(
    stack: Path,
) -> None:
    for settings in (told_kafka(None), kafka_at("given:1")):
        assert settings is not None
        assert settings.brokers.protocol == "SSL"


def test_brokers_of_a_local_stack_are_reached_without_tls(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = told_kafka(stack)
    assert typed is not None
    assert (typed.brokers.servers, typed.brokers.protocol) == ("near:1", "PLAINTEXT")
    monkeypatch.setenv("STELE_DIR", str(stack))
    monkeypatch.setenv("STELE_KAFKA_BOOTSTRAP", "near:1")  # as `stele stack env` prints it
    assert told_kafka(None) == typed


def test_conflicting_kafka_variables_are_a_usage_error(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_KAFKA_SASL_USERNAME", "stele")
    with pytest.raises(UsageError, match="STELE_KAFKA_SASL_USERNAME is set"):
        told_kafka(None)
