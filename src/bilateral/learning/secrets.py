"""What the parties of one process draw their secrets from, as protections and aggregation ask for it."""

from __future__ import annotations

from typing import Protocol

from bilateral.protocols.mask.keys import KeyRing
from bilateral.randomness import Randomness


class Secrets(Protocol):
    """What the parties of one process draw their secrets from."""

    @property
    def run_id(self) -> bytes:
        """What keys and masks are bound to; public, never used for two terms."""
        ...

    def bind(self, facts: bytes) -> None:
        """Make the run id depend on what the parties were told, before any key is drawn. Not needed in a simulation."""
        ...

    def batches(self, plan_seed: int, name: str) -> Randomness:
        """What client `name` deals its batches by. In a deployment a round that is repeated has another batch: two sums
        over one batch and different clients would differ by single uploads."""
        ...

    def stream(self, *labels: str | int) -> Randomness:
        """Randomness that only the owner named by `labels` knows."""
        ...

    def training_stream(self, name: str) -> Randomness:
        """What client `name` draws while training, where a claim rests on its being secret."""
        ...

    def model_seed(self, plan_seed: int) -> int:
        """Where the server's initial weights come from: known ones would tell clients their factors (ledger line 9)."""
        ...

    def key_ring(self, name: str) -> KeyRing:
        """New keys of a client that lives here."""
        ...

    def pinned(self) -> dict[str, bytes]:
        """The public identity keys of all clients."""
        ...
