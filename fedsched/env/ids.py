"""UUID text from random bytes, without the `uuid` module, which costs a short command more than the command itself."""

from __future__ import annotations


def uuid_text(random_bytes: bytes) -> str:
    """Turn 16 random bytes into the text of a version 4 UUID (RFC 9562): 122 of the bits are kept."""
    if len(random_bytes) != 16:
        raise ValueError(f"a UUID needs 16 bytes, got {len(random_bytes)}")
    bits = int.from_bytes(random_bytes, "big")
    bits = bits & ~(0xF << 76) | (4 << 76)
    bits = bits & ~(0x3 << 62) | (0x2 << 62)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
