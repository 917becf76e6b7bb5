"""Masks that cancel in a sum, from keys that sites agree on in pairs (Bonawitz et al., 2017).

A site i hides x by y = x + m(own seed) + the sum over other sites j of +-m(seed of i and j), where
the sign differs at i and j. In the sum of all y the masks of pairs cancel; secure_site.py says
what removes the others. Keys are agreed on by X25519 and HKDF, seeds are expanded by AES-256 in
counter mode and shared by Shamir's scheme; shares travel under ChaCha20-Poly1305.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedmes.engines.flower.fixed_point import Ring

SEED = 16  # bytes of a secret that is shared: what Shamir's scheme of pycryptodome takes
NONCE = 12

Keys = Mapping[int, bytes]  # the public key of each client


def new_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def new_seed() -> bytes:
    return os.urandom(SEED)


def public_of(key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def threshold(sites: int) -> int:
    """How many of them must be left at the end: two thirds."""
    return max(2, -(-2 * sites // 3))


def mask(seed: bytes, like: Ring) -> Ring:
    """As many numbers as that, which nobody can tell from random ones without the seed."""
    key = _derived(seed, b"mask")
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(like.nbytes))
    return np.frombuffer(stream, like.dtype)


def sealed(seed: bytes) -> bytes:
    """What a seed that is put together from shares is checked by."""
    return sha256(b"fedmes seal" + seed).digest()


def signed(me: int, peer: int, values: Ring) -> Ring:
    """A pair's mask as the first of the two adds it; the other one subtracts it."""
    if me < peer:
        return values
    return 0 - values


def combined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as are needed, by the holder's place among the sites."""
    placed = [(place + 1, share) for place, share in shares.items()]
    return Shamir.combine(placed, ssss=False)


class Party:
    """A site's part in one sum, in which every site has a key that is used for it alone."""

    def __init__(self, me: int, key: bytes, keys: Keys) -> None:
        self.me = me
        self.key = X25519PrivateKey.from_private_bytes(key)
        self.keys = keys
        everyone = sorted(keys.items())
        listed = b"".join(client.to_bytes(4, "little") + public for client, public in everyone)
        self.context = sha256(listed).digest()

    def pair_seed(self, peer: int) -> bytes:
        return _derived(self._agreed(peer), b"pair" + self.context)

    def masked(self, own: bytes, values: Ring) -> Ring:
        hidden = values + mask(own, values)
        for peer in self.keys:
            if peer != self.me:
                hidden += signed(self.me, peer, mask(self.pair_seed(peer), values))
        return hidden

    def shares(self, own: bytes) -> dict[int, bytes]:
        """Of the own seed: for each site one, which it alone can read; one is for this site."""
        places = Shamir.split(threshold(len(self.keys)), len(self.keys), own, ssss=False)
        found = {}
        for peer, (_, share) in zip(sorted(self.keys), places, strict=True):
            nonce = os.urandom(NONCE)
            cipher = ChaCha20Poly1305(self._share_key(peer))
            found[peer] = nonce + cipher.encrypt(nonce, share, _address(self.me, peer))
        return found

    def share_from(self, peer: int, box: bytes) -> bytes:
        """A share that was meant for this site; a ValueError if it was not."""
        cipher = ChaCha20Poly1305(self._share_key(peer))
        try:
            return cipher.decrypt(box[:NONCE], box[NONCE:], _address(peer, self.me))
        except InvalidTag:
            raise ValueError(f"a share of client {peer} that is not for this site") from None

    def _share_key(self, peer: int) -> bytes:
        return _derived(self._agreed(peer), b"share" + self.context)

    def _agreed(self, peer: int) -> bytes:
        return self.key.exchange(X25519PublicKey.from_public_bytes(self.keys[peer]))


def _address(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()


def _derived(secret: bytes, purpose: bytes) -> bytes:
    info = b"fedmes secure aggregation " + purpose
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
