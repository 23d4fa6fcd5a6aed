"""A server's certificate and its private key, as files: checked before anything listens with them."""

from __future__ import annotations

import contextlib
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError

CERTIFICATE, KEY = "--tls-cert", "--tls-key"


@dataclass(frozen=True)
class CertificatePair:
    """A certificate followed by its chain, and its private key: PEM files."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The context that a server listens with: TLS 1.2 or newer.

        Raises:
            LabError: a file cannot be read, others can read the key, the two do not belong together, or the certificate
                is not valid now.
        """
        _require_readable(self.certificate, CERTIFICATE)
        _require_readable(self.key, KEY)
        if (mode := stat.S_IMODE(self.key.stat().st_mode)) & stat.S_IRWXO:
            why = f"its mode is {mode:04o}: every user of this machine may open it"
            raise LabError(
                f"the private key {self.key} is not private", why, f"chmod o= {self.key}", code="tls-key-exposed"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse)
        except _Encrypted:
            remedy = f"openssl pkey -in {self.key} -out NEW_KEY, then {KEY} NEW_KEY"
            raise LabError(
                f"the private key {self.key} is encrypted",
                "the server starts without a password",
                remedy,
                code="tls-key-encrypted",
            ) from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise LabError(
                    f"{self.certificate} and {self.key} do not belong together",
                    "the key is another certificate's",
                    f"give the key that the certificate was made with ({KEY})",
                    code="tls-pair-mismatch",
                ) from None
            raise LabError(
                f"{self.certificate} and {self.key} are no certificate and its key",
                str(error),
                f"both as PEM text; {CERTIFICATE} begins with BEGIN CERTIFICATE",
                code="tls-files-invalid",
            ) from None
        self._require_valid(context)
        return context

    def _require_valid(self, server: ssl.SSLContext) -> None:
        """Let a client that trusts this certificate alone meet the server in memory: it finds what is wrong."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(self.certificate)
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
        try:
            for _ in range(4):  # a handshake has at most four flights
                for end in ends:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise LabError(
                f"clients would refuse the certificate {self.certificate}",
                error.verify_message,
                f"renew it, then give the new one ({CERTIFICATE})",
                code="tls-certificate-invalid",
            ) from None


class _Encrypted(Exception):
    """A key wants a password."""


def _refuse() -> str:
    raise _Encrypted


def _require_readable(path: Path, option: str) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise LabError(
            f"{option}: {path} cannot be read",
            error.strerror or str(error),
            "check the path, and who may read the file",
            code="tls-file-unreadable",
        ) from None
