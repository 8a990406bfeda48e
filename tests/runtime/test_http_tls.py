"""HTTPS of a process: its certificate, and the authorities that clients accept."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from stele.client import plain
from stele.runtime.http import Health, bind, build_app, serving
from stele.runtime.http_tls import certificate_refused, server_tls
from stele.runtime.settings import ConfigurationError, ServiceSettings, load_settings
from stele.runtime.transport import connector
from tests.certificates import Authority
from tests.docs.pages import REPOSITORY

CHECK = REPOSITORY / "infra" / "images" / "healthcheck"
CERTIFICATE, KEY = "STELE_HTTP_TLS_CERTIFICATE_FILE", "STELE_HTTP_TLS_KEY_FILE"


def locked(key: Path) -> Path:
    """Return the key encrypted with a password."""
    found = load_pem_private_key(key.read_bytes(), None)
    file = key.with_suffix(".locked")
    secret = BestAvailableEncryption(b"secret")
    file.write_bytes(found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    return file


@pytest.mark.parametrize(
    ("lacks", "problem"),
    [
        ("key", f"{KEY} is missing"),
        ("certificate", f"{CERTIFICATE} is missing"),
        ("file", f"{KEY}: .* cannot be read"),
        ("own key", "is not its key"),
        ("open key", "has a password"),
        ("pem", "is no certificate in PEM"),
    ],
)
def test_start_fails_on_mismatched_certificate_settings(
    tmp_path: Path, lacks: str, problem: str
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.give("one")
    _, other = authority.give("other")
    given = {
        "key": {CERTIFICATE: certificate},
        "certificate": {KEY: key},
        "file": {CERTIFICATE: certificate, KEY: tmp_path / "none"},
        "own key": {CERTIFICATE: certificate, KEY: other},
        "open key": {CERTIFICATE: certificate, KEY: locked(key)},
        "pem": {CERTIFICATE: key, KEY: key},
    }[lacks]
    with pytest.raises(ConfigurationError, match=problem):
        load_settings(ServiceSettings, {name: str(file) for name, file in given.items()})


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_start_fails_on_unreadable_authorities(tmp_path: Path, content: str | None) -> None:
    """OpenSSL ignores such files without an error, and uses no authorities or those of the machine."""
    file = tmp_path / "authorities"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"SSL_CERT_FILE: {file}"):
        load_settings(ServiceSettings, {"SSL_CERT_FILE": str(file)})


@pytest.mark.parametrize(
    ("believed", "host", "why"),
    [
        ("stranger", "127.0.0.1", "SSL_CERT_FILE names the file of the authorities"),
        ("authority", "127.0.0.2", "Give it one in which this name or address stands"),
    ],
)
async def test_refused_certificate_has_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, believed: str, host: str, why: str
) -> None:
    authority = Authority(tmp_path, "authority")
    Authority(tmp_path, "stranger")
    tls = server_tls(*map(str, authority.give("one")))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / f"{believed}.pem"))
    app = build_app("trial", [], lambda: Health(ok=True))
    async with serving(app, bind(host, 0), tls=tls) as url:
        async with aiohttp.ClientSession(connector=connector()) as http:
            with pytest.raises(aiohttp.ClientError) as by_aiohttp:
                await http.get(f"{url}/healthz")
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError) as by_httpx:
                await http.get(f"{url}/healthz")
    for error in (by_aiohttp.value, by_httpx.value):
        assert why in certificate_refused(error)
        assert certificate_refused(error) == plain(error)
    assert certificate_refused(TimeoutError()) == ""


@pytest.mark.parametrize("is_well", [True, False])
@pytest.mark.parametrize("is_secured", [True, False])
async def test_health_check_of_the_image_works_with_and_without_tls(
    tmp_path: Path, is_well: bool, is_secured: bool
) -> None:
    certificate, key = Authority(tmp_path, "authority").give("one")
    tls = server_tls(str(certificate), str(key)) if is_secured else None
    app = build_app("trial", [], lambda: Health(ok=is_well, reason="" if is_well else "tired"))
    sock = bind("127.0.0.1", 0)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "STELE_HTTP_PORT": str(sock.getsockname()[1])}
    if is_secured:
        env[CERTIFICATE] = str(certificate)
    async with serving(app, sock, tls=tls):
        asked = await asyncio.create_subprocess_exec(
            "bash", str(CHECK), env=env, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(240):
            shown, _ = await asked.communicate()
    assert (asked.returncode == 0) is is_well
    assert json.loads(shown)["reason"] == ("" if is_well else "tired")


async def test_client_must_trust_the_authority_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    certificate, key = authority.give("one")
    tls = server_tls(str(certificate), str(key))
    app = build_app("trial", [], lambda: Health(ok=True))
    async with serving(app, bind("127.0.0.1", 0), tls=tls) as url:
        assert url.startswith("https://127.0.0.1:")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        async with aiohttp.ClientSession(connector=connector()) as http:
            assert (await http.get(f"{url}/healthz")).status == 200
        for file in (str(stranger.file), ""):
            monkeypatch.setenv("SSL_CERT_FILE", file)
            async with aiohttp.ClientSession(connector=connector()) as http:
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await http.get(f"{url}/healthz")
