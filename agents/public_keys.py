"""Public SSH keys that people give us: one line each, without options, of a kind that is still safe. Pure."""

import base64
import binascii
import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

KINDS = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip
RSA_BITS_MIN = 2048
_LINE = re.compile(rf"({'|'.join(map(re.escape, KINDS))}) ([A-Za-z0-9+/]+={{0,2}})( [^\x00-\x1f\x7f]*)?")


def fault(text: str) -> str | None:
    """Return what is wrong with the line, in words, or None if it is one good public key."""
    found = _LINE.fullmatch(text)
    if found is None:
        return "One public key without options is expected, such as: ssh-ed25519 AAAA… name"
    kind, body = found[1], found[2]
    try:
        blob = base64.b64decode(body, validate=True)
        size = int.from_bytes(blob[:4])
    except (binascii.Error, ValueError):
        return "The key is not base64."
    if len(blob) < 4 or blob[4 : 4 + size] != kind.encode():
        return f"The key says that it is {kind}, and is not."
    if kind.startswith("sk-"):
        return None if len(blob) > 64 else "The key is cut off."
    try:
        key = load_ssh_public_key(f"{kind} {body}".encode())
    except (ValueError, UnsupportedAlgorithm):
        return "The key cannot be read: is it whole?"
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        return f"An RSA key of {key.key_size} bits is too short; {RSA_BITS_MIN} are needed."
    return None


def bare(text: str) -> str:
    """Return kind and body of a good line: what says the same to sshd, without what its owner called it."""
    return " ".join(text.split(" ")[:2])
