"""A certificate authority, a server's certificate and a node's key, in the formats that Flower
reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

VALID = timedelta(days=365)


@dataclass(frozen=True)
class ServerFiles:
    authority: Path  # goes to every site and every operator
    certificate: Path
    key: Path


def make_server(directory: Path, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> ServerFiles:
    """An authority and the certificate it gives a server of these names. The authority's key is
    kept nowhere: who needs another certificate makes another authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def usage(sign: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not sign, key_cert_sign=sign, crl_sign=sign,
            content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip

    def certificate(
        subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .issuer_name(issuer)
            .subject_name(subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))  # clocks differ
            .not_valid_after(now + VALID)
        )

    issuer = named("fedmes federation authority")
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        certificate(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        certificate(named(hosts[0]), server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    files = ServerFiles(directory / "ca.crt", directory / "server.pem", directory / "server.key")
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(server.public_bytes(pem))
    pkcs8, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(files.key, server_key.private_bytes(pem, pkcs8, bare))
    return files


def make_node_key(directory: Path, name: str) -> None:
    """`key` and `key.pub`, as `ssh-keygen -t ecdsa -b 384` makes them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    openssh, bare = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_private(directory / "key", key.private_bytes(serialization.Encoding.PEM, openssh, bare))
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (directory / "key.pub").write_bytes(line + b" " + name.encode() + b"\n")


def _host(host: str):  # type: ignore[no-untyped-def]  # x509.GeneralName, of a package that is imported late
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_private(path: Path, content: bytes) -> None:
    """For its owner's eyes from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
