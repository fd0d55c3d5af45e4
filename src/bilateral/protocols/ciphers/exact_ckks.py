"""CKKS by TenSEAL, as FLARE's users know it, over whole numbers: what is opened is rounded to them.

Parameters are those of FLARE's homomorphic aggregation: 8192 coefficients, moduli of 60, 40 and 40 bits (the standard
allows 218 in all at 128-bit security), a scale of 2^40, symmetric encryption. All clients hold one secret key, the
server none: it adds ciphertexts, and a client opens the sum.

CKKS is approximate, and an approximate decryption that is shown tells the key to whoever has the ciphertext (Li and
Micciancio 2021), which here is the server. So values are whole numbers whose sums stay below 2^`BITS`, far above the
errors, and a client shows rounded sums alone: they are a function of what was encrypted, and of nothing else. It also
makes sums exact. An error that is not far below 1/2 is refused, and shows nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from bilateral.errors import LostSumError, MalformedMessageError, ProtocolError
from bilateral.protocols.ciphers.cryptosystem import Dealt
from bilateral.protocols.ciphers.integers import Integers
from bilateral.protocols.ciphers.packages import tenseal
from bilateral.randomness import Randomness

DEGREE: Final = 8192
MODULI: Final = (60, 40, 40)
SCALE_BITS: Final = 40
BITS: Final = 40
"""Of a sum, with its sign: float64, in which TenSEAL encodes, then errs by less than a thousandth."""
LARGEST_ERROR: Final = 0.05
LARGEST_UPLOAD: Final = 1 << 32


@dataclass(frozen=True)
class ExactCkks:
    """One key for all clients."""

    dealer_opens: bool = False

    def num_helpers(self, num_clients: int) -> int:  # noqa: ARG002
        return 1

    def deal(self, clients: Sequence[str], randomness: Randomness) -> Dealt:  # noqa: ARG002
        """TenSEAL draws from the operating system, whatever a simulation's seed is."""
        ts = tenseal()
        context = ts.context(
            ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI), encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
        )
        context.global_scale = 2.0**SCALE_BITS
        secret = _serialized(context, secret=True)
        return Dealt(_serialized(context, secret=False), dict.fromkeys(clients, secret))

    def holder(self, name: str, public: bytes, private: bytes, randomness: Randomness) -> CkksHolder:  # noqa: ARG002
        return CkksHolder(name, _context(private, "the dealer"), _context(public, "the dealer"))

    def master(self, public: bytes, master: bytes) -> CkksHolder:
        raise NotImplementedError("clients open sums, not their dealer")

    def opener(self, public: bytes) -> CkksOpener:
        return CkksOpener(_context(public, "the dealer"))


class CkksHolder:
    """A client, with the key that all have."""

    def __init__(self, name: str, context: Any, public: Any) -> None:
        if not context.has_secret_key() or public.has_secret_key():
            raise MalformedMessageError(f"{name}: the dealt keys have the secret key where it should not be, or not.")
        self._name = name
        self._context = context

    def encrypt(self, values: Integers) -> bytes:
        with redirect_stdout(io.StringIO()):  # TenSEAL says there that several ciphertexts cannot be multiplied
            found: bytes = tenseal().ckks_vector(self._context, values.astype(np.float64).tolist()).serialize()
        return found

    def help_open(self, request: bytes) -> bytes:
        """The sum, rounded."""
        vector = _vector(self._context, request, "the server")
        if any(one.scale != 2.0**SCALE_BITS or one.size() != 2 for one in vector.ciphertext()):
            raise ProtocolError(
                f"{self._name}: the server asks to open a ciphertext of another scale than 2^{SCALE_BITS}.",
                remedy="It is of another run, or was changed.",
            )
        values = np.array(vector.decrypt(), dtype=np.float64)
        rounded = np.rint(values)
        fits = np.isfinite(values) & (np.abs(values) < 2.0 ** (BITS + 1))
        if not fits.all() or float(np.abs(values - rounded).max(initial=0.0)) > LARGEST_ERROR:
            raise ProtocolError(
                f"{self._name}: what the server asked to open is no sum of whole numbers under this key; nothing of it "
                "is told.",
                remedy="It is of another run, or was changed.",
            )
        return rounded.astype("<i8").tobytes()


@dataclass(frozen=True)
class CkksOpener:
    """The server: adds."""

    context: Any

    def check(self, ciphertext: bytes, count: int, sender: str) -> None:
        vector = _vector(self.context, ciphertext, sender)
        if vector.size() != count or len(vector.ciphertext()) != math.ceil(count / (DEGREE // 2)):
            raise MalformedMessageError(f"Expected {count} encrypted values from {sender}, got {vector.size()}.")
        if any(one.scale != 2.0**SCALE_BITS or one.size() != 2 for one in vector.ciphertext()):
            raise MalformedMessageError(f"The ciphertext from {sender} has another scale than 2^{SCALE_BITS}.")

    def request(self, ciphertexts: Mapping[str, bytes]) -> bytes:
        total, *others = [_vector(self.context, ciphertexts[name], name) for name in sorted(ciphertexts)]
        for other in others:
            total = total + other
        found: bytes = total.serialize()
        return found

    def check_part(self, part: bytes, count: int, sender: str) -> None:
        if len(part) != 8 * count:
            raise MalformedMessageError(f"Expected {count} opened values from {sender}, got {len(part) / 8:g}.")

    def open(
        self,
        ciphertexts: Mapping[str, bytes],  # noqa: ARG002
        request: bytes,  # noqa: ARG002
        parts: Mapping[str, bytes],
        count: int,  # noqa: ARG002
    ) -> Integers:
        if not parts:
            raise LostSumError("No client opened the sum.")
        first = sorted(parts)[0]
        return np.frombuffer(parts[first], dtype="<i8").astype(np.int64)


def _serialized(context: Any, *, secret: bool) -> bytes:
    """Without what multiplying takes: nothing here multiplies."""
    found: bytes = context.serialize(
        save_public_key=False, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return found


@lru_cache(maxsize=16)
def _context(data: bytes, sender: str) -> Any:
    ts = tenseal()
    try:
        context = ts.context_from(data)
    except (ValueError, RuntimeError, TypeError) as error:
        raise MalformedMessageError(f"Expected the parameters of CKKS from {sender}, got something else.") from error
    return context


def _vector(context: Any, data: bytes, sender: str) -> Any:
    if not 0 < len(data) <= LARGEST_UPLOAD:
        raise MalformedMessageError(f"A ciphertext of {len(data)} bytes from {sender} is not what can be read.")
    try:
        return tenseal().ckks_vector_from(context, data)
    except (ValueError, RuntimeError, TypeError) as error:
        raise MalformedMessageError(f"Expected a vector under CKKS from {sender}, got something else.") from error
