"""Functions of hashes, secrets and ids. Chance is handed in by the caller; heavy libraries are loaded on use."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from typing import Final

from fedsched.jobspec.context import Context, FunctionFailed
from fedsched.jobspec.functions.registry import function, whole
from fedsched.jobspec.limits import MAX_BCRYPT_COST
from fedsched.jobspec.types import NUMBER, STRING
from fedsched.jobspec.values import Value, string

_STR = ("str", STRING)
_NAMESPACES: Final = {
    "dns": "6ba7b8109dad11d180b400c04fd430c8",
    "url": "6ba7b8119dad11d180b400c04fd430c8",
    "oid": "6ba7b8129dad11d180b400c04fd430c8",
    "x500": "6ba7b8149dad11d180b400c04fd430c8",
}
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_BCRYPT_ALPHABET: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
)


@function("md5", takes=(_STR,))
def md5(text: Value) -> Value:
    return string(hashlib.md5(text.text.encode(), usedforsecurity=False).hexdigest())


@function("sha1", takes=(_STR,))
def sha1(text: Value) -> Value:
    return string(hashlib.sha1(text.text.encode(), usedforsecurity=False).hexdigest())


@function("sha256", takes=(_STR,))
def sha256(text: Value) -> Value:
    return string(hashlib.sha256(text.text.encode()).hexdigest())


@function("sha512", takes=(_STR,))
def sha512(text: Value) -> Value:
    return string(hashlib.sha512(text.text.encode()).hexdigest())


@function("bcrypt", takes=(_STR,), rest=("cost", NUMBER), context=True)
def bcrypt_hash(context: Context, text: Value, *costs: Value) -> Value:
    import bcrypt

    if len(costs) > 1:
        raise FunctionFailed("at most a text and a cost are taken")
    cost = whole(costs[0]) if costs else 10
    if not 4 <= cost <= MAX_BCRYPT_COST:
        raise FunctionFailed(f"the cost goes from 4 to {MAX_BCRYPT_COST}, {cost} does not")
    secret = text.text.encode()
    if len(secret) > 72:
        raise FunctionFailed("bcrypt takes at most 72 bytes")
    salt = b64encode(_random(context, 16)).translate(_BCRYPT_ALPHABET).rstrip(b"=")[:22]
    # the dearest hash takes half of a file's budget
    context.budget.produce(2048 << cost, None)
    return string(bcrypt.hashpw(secret, b"$2b$%02d$" % cost + salt).decode().replace("$2b$", "$2a$", 1))


@function("rsadecrypt", takes=(("ciphertext", STRING), ("privatekey", STRING)), weight=256)
def rsadecrypt(ciphertext: Value, privatekey: Value) -> Value:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(privatekey.text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FunctionFailed("the second argument holds no private key that can be read (PEM, not encrypted)") from None
    if not isinstance(key, RSAPrivateKey):
        raise FunctionFailed("the key is no RSA key")
    try:
        return string(key.decrypt(b64decode(ciphertext.text, validate=True), PKCS1v15()).decode())
    except ValueError:
        raise FunctionFailed("the text cannot be decrypted with this key") from None


@function("uuidv4", context=True)
def uuidv4(context: Context) -> Value:
    return string(_uuid(_random(context, 16), 4))


@function("uuidv5", takes=(("namespace", STRING), ("name", STRING)))
def uuidv5(namespace: Value, name: Value) -> Value:
    given = _NAMESPACES.get(namespace.text)
    if given is None:
        if not _UUID.fullmatch(namespace.text):
            raise FunctionFailed(f"{namespace.text[:40]!r} is none of dns, url, oid, x500, and no uuid")
        given = namespace.text.replace("-", "")
    digest = hashlib.sha1(bytes.fromhex(given) + name.text.encode(), usedforsecurity=False).digest()
    return string(_uuid(digest[:16], 5))


def _uuid(raw: bytes, version: int) -> str:
    changed = bytearray(raw)
    changed[6] = changed[6] & 0x0F | version << 4
    changed[8] = changed[8] & 0x3F | 0x80
    text = changed.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _random(context: Context, count: int) -> bytes:
    if context.entropy is None:
        raise FunctionFailed("chance is not available here")
    return context.entropy(count)
