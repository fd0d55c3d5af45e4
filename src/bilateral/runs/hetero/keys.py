"""Keys of a heterogeneous run whose parties are in processes of their own: a simulation, all from the plan's seed.

The first term has the keys of `secure_answers.agreed_keys`, so that a run on many processes has the same masks as one
in a single process, and the same sums bit for bit. A later term has other keys under the same identities.
"""

from __future__ import annotations

from collections.abc import Sequence

from bilateral.protocols.mask.keys import RUN_ID_BYTES, Identity, KeyRing
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness, SeededRandomness
from bilateral.runs.hetero.plan import HeteroPlan


class SimulatedKeys:
    """Everybody's keys in one term, from one seed: repeatable, and secret from nobody who knows the plan."""

    def __init__(self, plan: HeteroPlan, term: int) -> None:
        self.names: Sequence[str] = (SERVER, *plan.clients.names)
        self._lasting = answers_randomness(plan)
        self._of_term = self._lasting.child("term", term) if term else self._lasting
        self.run_id = self._of_term.child("run").random_bytes(RUN_ID_BYTES)

    @property
    def sessions(self) -> Randomness:
        """Where the server's names of sessions come from."""
        return self._of_term.child("sessions")

    def ring(self, name: str) -> KeyRing:
        """The keys of one party."""
        return KeyRing(name, self.run_id, self._identity(name), self.pinned(), self._of_term.child("agreement", name))

    def pinned(self) -> dict[str, bytes]:
        """Everybody's public identity key."""
        return {name: self._identity(name).public_bytes for name in self.names}

    def _identity(self, name: str) -> Identity:
        return Identity.generate(self._lasting.child("identity", name))


def answers_randomness(plan: HeteroPlan) -> Randomness:
    """What `SecureAnswers` of a simulation draws from: the same plan, the same masks, on every engine."""
    return SeededRandomness(plan.seed, "answers")
