"""A certificate authority, a server's certificate and a node's key, in Flower's formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

VALID = timedelta(days=365)


@dataclass(frozen=True)
class ServerFiles:
    """What a SuperLink needs for TLS."""

    authority: Path  # goes to every site and every operator
    certificate: Path
    key: Path


def make_server(directory: Path, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> ServerFiles:
    """An authority, and the certificate that it gives a server of these names.

    The authority's key is not kept: another certificate needs another authority.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = "fedmes federation authority"
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _certificate(issuer, issuer, authority_key.public_key(), signs=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(map(_host, hosts))
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    server = (
        _certificate(issuer, hosts[0], server_key.public_key(), signs=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(issued_by, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = ServerFiles(directory / "ca.crt", directory / "server.pem", directory / "server.key")
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(server.public_bytes(pem))
    pkcs8 = serialization.PrivateFormat.PKCS8
    bare = serialization.NoEncryption()
    write_private(files.key, server_key.private_bytes(pem, pkcs8, bare))
    return files


def _certificate(issuer: str, subject: str, public_key: Any, signs: bool) -> Any:
    """The beginning of a certificate; `signs`: of an authority, which signs others."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def named(name: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    if signs:
        constraints = x509.BasicConstraints(ca=True, path_length=0)
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(named(issuer))
        .subject_name(named(subject))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def make_node_key(directory: Path, name: str) -> None:
    """`key` and `key.pub`, as `ssh-keygen -t ecdsa -b 384` makes them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    bare = serialization.NoEncryption()
    write_private(directory / "key", key.private_bytes(serialization.Encoding.PEM, openssh, bare))
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (directory / "key.pub").write_bytes(line + b" " + name.encode() + b"\n")


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner can read, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
