"""Where the secrets of a run come from: a simulation derives them from its seed, a deployment draws its own.

Formal guarantees (tests/engine/test_secrets.py):
- term 0 of a simulation is the same whenever it is run; a later term has another run id, other agreement keys and other
  masks, and the same identities, so that no mask of one term can be taken for one of another;
- `OwnSecrets` gives nothing of a client to any process but that client's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import final

from bilateral.errors import AuthenticationError, ProtocolError
from bilateral.protocols.mask.keys import RUN_ID_BYTES, Identity, KeyRing
from bilateral.randomness import Randomness, SecureRandomness, SeededRandomness

_OF_A_TERM = ("run id", "masks")
"""First labels of streams that are another in every term. (Agreement keys follow the run id.)"""


@final
class SimulatedSecrets:
    """Everybody's secrets, from one seed: repeatable, and secret from nobody who knows the plan."""

    def __init__(self, seed: int, names: Sequence[str], term: int = 0) -> None:
        self._seed = seed
        self._names = tuple(names)
        self._term = term
        self._identities: dict[str, Identity] = {}

    @property
    def run_id(self) -> bytes:
        return self.stream("run id").random_bytes(RUN_ID_BYTES)

    def bind(self, facts: bytes) -> None:
        """Everybody's secrets are public here."""

    def batches(self, plan_seed: int, name: str) -> Randomness:
        return SeededRandomness(plan_seed, "client", name, "batches")

    def stream(self, *labels: str | int) -> Randomness:
        of_term = (self._term,) if self._term and labels[0] in _OF_A_TERM else ()
        return SeededRandomness(self._seed, "secrets", *labels, *of_term)

    def training_stream(self, name: str) -> Randomness:
        return SeededRandomness(self._seed, "secrets of", name)

    def model_seed(self, plan_seed: int) -> int:
        return plan_seed

    def key_ring(self, name: str) -> KeyRing:
        if name not in self._names:
            raise ProtocolError(f"{name!r} is no client of this run.", remedy="Both sides must run the same plan.")
        others = {other: key for other, key in self.pinned().items() if other != name}
        return KeyRing(name, self.run_id, self._identity(name), others, self.stream("keys", name))

    def pinned(self) -> dict[str, bytes]:
        return {name: self._identity(name).public_bytes for name in self._names}

    def _identity(self, name: str) -> Identity:
        if name not in self._identities:
            self._identities[name] = Identity.generate(self.stream("identity", name))
        return self._identities[name]


@final
class OwnSecrets:
    """A deployment: every secret is drawn from the operating system, in the process of the party that it belongs to.

    A client gives its `name` and long-lived `identity`; the server gives neither. `pinned` are all clients' public
    identity keys, as this machine's operator got them.
    """

    def __init__(
        self,
        run_id: bytes,
        pinned: Mapping[str, bytes],
        name: str | None = None,
        identity: Identity | None = None,
    ) -> None:
        if (name is None) != (identity is None):
            raise ProtocolError("Expected a client's name and its identity together, or neither (the server).")
        if name is not None and identity is not None and pinned.get(name) != identity.public_bytes:
            raise AuthenticationError(
                f"{name}: the identity key of this machine is not the one that is pinned for {name}.",
                remedy="Use the key file that belongs to this kit, or have the new public key pinned everywhere.",
            )
        if len(run_id) != RUN_ID_BYTES:
            raise ProtocolError(f"Expected a run id of {RUN_ID_BYTES} bytes, got {len(run_id)}.")
        self.run_id = run_id
        self._model_seed = SecureRandomness().integer_below(2**63)
        self._pinned = dict(pinned)
        self._name = name
        self._identity = identity

    def bind(self, facts: bytes) -> None:
        """Sites that were told different facts have different run ids, so that none accepts the other's keys."""
        self.run_id = hashlib.sha256(self.run_id + facts).digest()

    def batches(self, plan_seed: int, name: str) -> Randomness:  # noqa: ARG002
        return SecureRandomness()

    def stream(self, *labels: str | int) -> Randomness:  # noqa: ARG002 (every stream is fresh)
        return SecureRandomness()

    def training_stream(self, name: str) -> Randomness:  # noqa: ARG002
        return SecureRandomness()

    def model_seed(self, plan_seed: int) -> int:  # noqa: ARG002
        return self._model_seed

    def key_ring(self, name: str) -> KeyRing:
        if self._identity is None or name != self._name:
            here = "the server" if self._name is None else self._name
            raise ProtocolError(
                f"The keys of {name!r} were asked for at {here}.", remedy=f"Build that client in {name}'s own process."
            )
        others = {other: key for other, key in self._pinned.items() if other != name}
        return KeyRing(name, self.run_id, self._identity, others, SecureRandomness())

    def pinned(self) -> dict[str, bytes]:
        return dict(self._pinned)
