"""TLS of what a process serves by HTTP. Who asks knows authorities by OpenSSL's own variable, SSL_CERT_FILE."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

CERTIFICATE: Final = "STELE_HTTP_TLS_CERTIFICATE_FILE"
KEY: Final = "STELE_HTTP_TLS_KEY_FILE"


class ServerTls(NamedTuple):
    """Files in PEM. A key with a password is none: nobody is there to type it."""

    certificate_file: str
    key_file: str

    def context(self) -> ssl.SSLContext:
        """Raises ValueError, which names the variable and says what to do."""
        for variable, file in ((CERTIFICATE, self.certificate_file), (KEY, self.key_file)):
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise ValueError(f"{variable}: {file} cannot be read ({error.strerror}).") from None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate_file, self.key_file, password="")
            return context
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                f"{CERTIFICATE}: {self.certificate_file} is no certificate in PEM, or {KEY}, {self.key_file},"
                f" is not its key, or has a password ({error})."
            ) from error


def server_tls(certificate_file: str, key_file: str) -> ServerTls | None:
    """None: HTTP without TLS. Raises ValueError where one of the two is missing, or cannot be used."""
    if not (certificate_file or key_file):
        return None
    if not (certificate_file and key_file):
        lacks = KEY if certificate_file else CERTIFICATE
        raise ValueError(f"{lacks} is missing: a certificate and its key are set together.")
    found = ServerTls(certificate_file, key_file)
    found.context()
    return found
