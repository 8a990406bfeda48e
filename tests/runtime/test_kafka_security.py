"""Settings of TLS and SASL to Kafka: client settings, refused values, and secrecy of the password."""

import re
from pathlib import Path

import msgspec
import pytest
from faust.auth import SASLCredentials, SSLCredentials

from stele.log.brokers import Brokers
from stele.runtime.live_flow import _credentials
from stele.runtime.settings import (
    ConfigurationError,
    KafkaSettings,
    ServiceSettings,
    environment_of,
    load_settings,
)
from tests.certificates import SEC1, Authority

HIDDEN = "to be"
PASSWORD = f'not "{HIDDEN}" \\ seen'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return all variables, with valid files."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.give("client")
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    return {
        "STELE_KAFKA_BOOTSTRAP": "broker:9093",
        "STELE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STELE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "STELE_KAFKA_SASL_USERNAME": "stele",
        "STELE_KAFKA_SASL_PASSWORD_FILE": str(password),
        "STELE_KAFKA_SSL_CA_FILE": str(authority.file),
        "STELE_KAFKA_SSL_CERTIFICATE_FILE": str(certificate),
        "STELE_KAFKA_SSL_KEY_FILE": str(key),
    }


def without(files: dict[str, str], *parts: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if not any(part in name for part in parts)}


def loaded(environment: dict[str, str]) -> Brokers:
    return load_settings(KafkaSettings, environment).brokers


def refused(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        loaded(environment)
    assert HIDDEN not in str(refusal.value)
    return str(refusal.value)


def test_clients_without_variables_get_only_the_servers() -> None:
    brokers = loaded({})
    assert brokers.java() == {"bootstrap.servers": "127.0.0.1:9092"}
    assert brokers.client() == {**brokers.java(), "reconnect.backoff.max.ms": 1000}
    assert _credentials(brokers) is None


def test_librdkafka_gets_the_files_and_the_password(files: dict[str, str]) -> None:
    assert loaded(files).client() == {
        "bootstrap.servers": "broker:9093",
        "reconnect.backoff.max.ms": 1000,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": files["STELE_KAFKA_SSL_CA_FILE"],
        "ssl.certificate.location": files["STELE_KAFKA_SSL_CERTIFICATE_FILE"],
        "ssl.key.location": files["STELE_KAFKA_SSL_KEY_FILE"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "stele",
        "sasl.password": PASSWORD,
    }


def test_java_gets_file_contents_and_a_quoted_password(files: dict[str, str]) -> None:
    made = loaded(files).java()
    assert made.pop("sasl.jaas.config") == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="stele" password="not \\"to be\\" \\\\ seen";'
    )
    assert made == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": Path(files["STELE_KAFKA_SSL_CA_FILE"]).read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": Path(
            files["STELE_KAFKA_SSL_CERTIFICATE_FILE"]
        ).read_text(),
        "ssl.keystore.key": Path(files["STELE_KAFKA_SSL_KEY_FILE"]).read_text(),
        "sasl.mechanism": "SCRAM-SHA-512",
    }


def test_faust_gets_sasl_or_ssl_credentials(files: dict[str, str]) -> None:
    both = _credentials(loaded(files))
    assert isinstance(both, SASLCredentials)
    assert (both.username, both.password) == ("stele", PASSWORD)
    assert (both.protocol.value, both.mechanism.value) == ("SASL_SSL", "SCRAM-SHA-512")
    tls = _credentials(loaded(without(files, "SASL") | {"STELE_KAFKA_SECURITY_PROTOCOL": "SSL"}))
    assert isinstance(tls, SSLCredentials)
    assert tls.context.check_hostname


def test_printed_and_encoded_settings_hide_the_password(files: dict[str, str]) -> None:
    settings = load_settings(ServiceSettings, files)
    assert HIDDEN in str(settings.brokers.client())
    for shown in (settings, settings.brokers, settings.brokers.login, environment_of(settings)):
        assert HIDDEN not in f"{shown!r} {shown}"
    assert HIDDEN.encode() not in msgspec.json.encode(settings)
    with pytest.raises(TypeError):
        msgspec.json.encode(settings.brokers)


def test_servers_are_separated_by_commas_without_blanks(files: dict[str, str]) -> None:
    """Faust treats a blank as part of the name, and an empty part as this machine."""
    bootstrap = " One.example:9093, [::1]:9094,10.0.0.1:9095 "
    brokers = loaded(files | {"STELE_KAFKA_BOOTSTRAP": bootstrap})
    assert brokers.servers == "One.example:9093,[::1]:9094,10.0.0.1:9095"


@pytest.mark.parametrize(
    "text",
    ["broker", "broker:9093,", ",", "::1:9093", "kafka://b:1", "a:1;b:2", "b:port", "a b:1", "b:0"],
)
def test_invalid_server_is_named(files: dict[str, str], text: str) -> None:
    assert f"STELE_KAFKA_BOOTSTRAP={text}: '" in refused(files | {"STELE_KAFKA_BOOTSTRAP": text})


@pytest.mark.parametrize(
    ("text", "correction"),
    [
        ("a:9092,b:9092,", "Write STELE_KAFKA_BOOTSTRAP=a:9092,b:9092."),
        (
            "SASL_SSL://a:9092,SASL_SSL://b:9092",
            "Write STELE_KAFKA_BOOTSTRAP=a:9092,b:9092 and STELE_KAFKA_SECURITY_PROTOCOL=SASL_SSL.",
        ),
        ("kafka://a:9092", "Separate several brokers by commas"),
        ("a:99999", "Separate several brokers by commas"),
    ],
)
def test_refused_bootstrap_shows_the_correction(
    files: dict[str, str], text: str, correction: str
) -> None:
    assert correction in refused(files | {"STELE_KAFKA_BOOTSTRAP": text})


def test_user_name_must_be_one_line(files: dict[str, str]) -> None:
    """Java's form of the login would end at a newline."""
    name = "STELE_KAFKA_SASL_USERNAME"
    assert f"{name} must be" in refused(files | {name: "stele\n"})


def test_environment_for_another_process_has_the_same_settings(files: dict[str, str]) -> None:
    assert environment_of(load_settings(KafkaSettings, files)) == files


@pytest.mark.parametrize("text", ["secret", "secret\n", "secret\r\n"])
def test_final_newline_is_not_part_of_the_password(files: dict[str, str], text: str) -> None:
    Path(files["STELE_KAFKA_SASL_PASSWORD_FILE"]).write_bytes(text.encode())
    assert loaded(files).client()["sasl.password"] == "secret"


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n", "one\n\n", "\0", " one", "one \n"])
def test_password_must_be_one_line(files: dict[str, str], text: str) -> None:
    Path(files["STELE_KAFKA_SASL_PASSWORD_FILE"]).write_text(text)
    assert "STELE_KAFKA_SASL_PASSWORD_FILE" in refused(files)


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ("SASL_MECHANISM", "STELE_KAFKA_SASL_MECHANISM is missing"),
        ("SASL_USERNAME", "STELE_KAFKA_SASL_USERNAME is missing"),
        ("SASL_PASSWORD_FILE", "STELE_KAFKA_SASL_PASSWORD_FILE is missing"),
        ("SSL_KEY_FILE", "STELE_KAFKA_SSL_KEY_FILE is missing"),
        ("SSL_CERTIFICATE_FILE", "STELE_KAFKA_SSL_CERTIFICATE_FILE is missing"),
    ],
)
def test_missing_variable_is_named(files: dict[str, str], left_out: str, named: str) -> None:
    assert named in refused(without(files, left_out))


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ("PLAINTEXT", "STELE_KAFKA_SSL_CA_FILE is set"),
        ("SASL_PLAINTEXT", "STELE_KAFKA_SSL_CA_FILE is set"),
        ("SSL", "STELE_KAFKA_SASL_MECHANISM is set"),
        ("TLS", "STELE_KAFKA_SECURITY_PROTOCOL='TLS'"),
    ],
)
def test_variable_that_the_protocol_does_not_use_is_named(
    files: dict[str, str], protocol: str, named: str
) -> None:
    assert named in refused(files | {"STELE_KAFKA_SECURITY_PROTOCOL": protocol})


@pytest.mark.parametrize(
    "variable",
    ["SASL_PASSWORD_FILE", "SSL_CA_FILE", "SSL_CERTIFICATE_FILE", "SSL_KEY_FILE"],
)
def test_missing_or_invalid_file_is_named(
    files: dict[str, str], variable: str, tmp_path: Path
) -> None:
    name = f"STELE_KAFKA_{variable}"
    nowhere = str(tmp_path / "nowhere")
    assert re.search(
        rf"{name}: {nowhere} cannot be read \(No such file", refused(files | {name: nowhere})
    )
    other = tmp_path / "other"
    other.write_bytes(b"\xff\n\n")
    assert f"{name}: {other}" in refused(files | {name: str(other)})
    if variable != "SASL_PASSWORD_FILE":
        other.write_text("no certificate\n")
        assert f"{name}: {other}" in refused(files | {name: str(other)})


def test_key_format_that_java_cannot_read_is_refused_with_a_command(
    files: dict[str, str], tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path, "another").give("other", SEC1)
    text = refused(
        files
        | {
            "STELE_KAFKA_SSL_CERTIFICATE_FILE": str(certificate),
            "STELE_KAFKA_SSL_KEY_FILE": str(key),
        }
    )
    assert "openssl pkcs8 -topk8 -nocrypt" in text


def test_key_of_another_certificate_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    _, key = Authority(tmp_path, "another").give("other")
    assert "is not its key" in refused(files | {"STELE_KAFKA_SSL_KEY_FILE": str(key)})
