"""By which key a site is known: the fingerprint that `ssh-keygen -lf key.pub` prints."""

from __future__ import annotations

import base64
import hashlib

from cryptography.hazmat.primitives import serialization
from flwr.serverapp import Grid

NO_KEY = "no key"


def fingerprint_of_line(line: str) -> str:
    """Of a public key as OpenSSH writes it: its kind, the key in base64, a comment."""
    key = base64.b64decode(line.split()[1])
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    return f"SHA256:{digest.rstrip('=')}"


def fingerprints(grid: Grid) -> dict[int, str]:
    """Of the nodes that are there. Flower has checked that each of them holds its key."""
    return {node.node_id: _fingerprint(node.public_key) for node in grid.get_nodes()}


def _fingerprint(pem: bytes) -> str:
    try:
        key = serialization.load_pem_public_key(pem)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except ValueError:
        return NO_KEY
    return fingerprint_of_line(line.decode())
