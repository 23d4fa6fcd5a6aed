"""Certificates of an authority of the tests' own, made with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

from labkit.tls import CertificatePair

NAMES = "subjectAltName=IP:127.0.0.1,IP:127.0.0.2,DNS:localhost"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(["openssl", *words], check=False, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def authority(folder: Path) -> Path:
    """The certificate of a new authority; its key lies beside it."""
    _openssl(folder, "req", "-x509", *EC, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=labs-test-ca")
    return folder / "ca.pem"


def pair(folder: Path, name: str = "server", days: int = 2) -> CertificatePair:
    """A server's certificate of the authority in ``folder``, for loopback; ``days`` below 0: it has expired."""
    (folder / "names.cnf").write_text(NAMES)
    _openssl(folder, "req", *EC, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names.cnf")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-days", str(days), "-out", f"{name}.pem")
    (folder / f"{name}.key").chmod(0o600)
    return CertificatePair(folder / f"{name}.pem", folder / f"{name}.key")
