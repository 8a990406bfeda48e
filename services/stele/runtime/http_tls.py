"""TLS of the HTTP servers.

Clients take their authorities from OpenSSL's own variable, SSL_CERT_FILE.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

CERTIFICATE: Final = "STELE_HTTP_TLS_CERTIFICATE_FILE"
KEY: Final = "STELE_HTTP_TLS_KEY_FILE"
AUTHORITIES: Final = "SSL_CERT_FILE"
_OTHER_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes: the certificate is for another name, or for another address."""
_STRANGER: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes: no trusted authority has signed the certificate."""


def check_authorities(file: str) -> None:
    """Raise ValueError for a file that OpenSSL would ignore silently."""
    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise ValueError(f"{AUTHORITIES}: {file} holds no certificate in PEM ({error}).") from None
    except OSError as error:
        raise ValueError(f"{AUTHORITIES}: {file} cannot be read ({error.strerror}).") from None


def certificate_refused(error: BaseException) -> str:
    """Return why a server's certificate was rejected and what to do; empty for any other error."""
    cause: BaseException | None = error
    while cause is not None and not _is_of_openssl(cause):
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return ""
    if cause.verify_code in _OTHER_NAME:
        do = "Give it one in which this name or address stands"
    elif cause.verify_code in _STRANGER:
        do = f"{AUTHORITIES} names the file of the authorities that are believed"
    else:
        do = "Give it a new one"
    return f"its certificate is refused ({cause.verify_message.rstrip('.')}). {do}"


def _is_of_openssl(error: BaseException) -> bool:
    """Return whether OpenSSL raised the error. aiohttp's own error is of the same class, and has
    no code.
    """
    return isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_code")


def server_tls(certificate_file: str, key_file: str) -> ssl.SSLContext | None:
    """Return the TLS context of two PEM files; None without files: HTTP without TLS.

    A key with a password is rejected, because it cannot be entered. Raises ValueError, which names
    the variable and what to do, when one of the files is missing or unusable.
    """
    if not (certificate_file or key_file):
        return None
    if not (certificate_file and key_file):
        lacks = KEY if certificate_file else CERTIFICATE
        raise ValueError(f"{lacks} is missing: a certificate and its key are set together.")
    for variable, file in ((CERTIFICATE, certificate_file), (KEY, key_file)):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ValueError(f"{variable}: {file} cannot be read ({error.strerror}).") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"{CERTIFICATE}: {certificate_file} is no certificate in PEM, or {KEY}, {key_file}, is not its key,"
            f" or has a password ({error})."
        ) from error
    return context
