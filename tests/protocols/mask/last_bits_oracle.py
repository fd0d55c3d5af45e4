"""What a client of the harness puts into a sum, in Python numbers, one value at a time."""

from __future__ import annotations

import hashlib
import math
import struct
from fractions import Fraction

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from bilateral.randomness import SeededRandomness

STEPS = 4


def key_of(name, upload, seed=0):
    """The key of one upload of a client of `harness.Group`."""
    secret = SeededRandomness(seed, "mask").child("mask client", name).child("last bits").random_bytes(32)
    content = str((upload.weight, *upload.terms.shape)).encode()
    for values in (upload.terms, upload.statistics):
        letter = {torch.float32: "f", torch.float64: "d"}[values.dtype]
        numbers = values.reshape(-1).tolist()
        content += str(values.dtype).encode() + struct.pack(f"<{len(numbers)}{letter}", *numbers)
    return hashlib.blake2b(content, key=secret, digest_size=32).digest()


def uniform(value, key):
    """On [-1/2, 1/2): 53 bits of the size of the value, enciphered."""
    block = struct.pack("<d", abs(value)) + bytes(8)
    word = int.from_bytes(Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)[:8], "little")
    return math.ldexp(word >> 11, -53) - 0.5


def integer(value, weight, fraction_bits, key, dtype=torch.float32):
    """round(weight * (value moved by a part of STEPS of its steps) * 2^fraction_bits), in exact numbers."""
    scale = weight * Fraction(2) ** fraction_bits
    power = math.ldexp(1.0, math.frexp(value)[1] - 1) if value else 0.0
    reach = Fraction(math.copysign(power * STEPS * torch.finfo(dtype).eps, value)) * scale
    return round(Fraction(uniform(value, key)) * reach + Fraction(value) * scale)


def integers(upload, fraction_bits, key):
    """All rows of an upload, as lists."""
    rows = [*upload.terms, upload.statistics]
    return [
        [integer(value, upload.weight, bits, key, row.dtype) for value in row.tolist()]
        for row, bits in zip(rows, fraction_bits, strict=True)
    ]
