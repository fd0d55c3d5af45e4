"""Answers by secret-shared prediction, with all parties in this process: the real protocol, message by message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bilateral.errors import PlanError
from bilateral.protocols.mask.keys import RUN_ID_BYTES, Identity, KeyDirectory, KeyRing
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, ComparisonStyle
from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
from bilateral.protocols.transport import SERVER, LocalTransport, Traffic
from bilateral.randomness import Randomness

MIN_ANSWERERS = 2
"""A sum over one is that one's answer."""


def agreed_keys(names: Sequence[str], randomness: Randomness) -> dict[str, KeyRing]:
    """Key agreement between parties that are all here: for simulation, with identities of their own."""
    identities = {name: Identity.generate(randomness.child("identity", name)) for name in names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    run_id = randomness.child("run").random_bytes(RUN_ID_BYTES)
    rings = {
        name: KeyRing(name, run_id, identities[name], pinned, randomness.child("agreement", name)) for name in names
    }
    directory = KeyDirectory(run_id, names, pinned)
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    return rings


class SecureAnswers:
    """The clients `names` and a server. Nobody sees another's queries, network or single answers."""

    def __init__(
        self,
        names: Sequence[str],
        randomness: Randomness,
        style: ComparisonStyle = DEFAULT_STYLE,
        on_answered: Callable[[int], None] = lambda _: None,
    ) -> None:
        rings = agreed_keys([SERVER, *names], randomness)
        self._clients = {name: PredictionClient(rings[name], style) for name in names}
        transport = LocalTransport({name: client.handle for name, client in self._clients.items()})
        self._server = PredictionServer(
            rings[SERVER], transport, style=style, randomness=randomness.child("sessions"), on_answered=on_answered
        )

    @property
    def traffic(self) -> Traffic:
        return self._server.traffic

    def offer(self, name: str, model: nn.Module, samples: Tensor) -> None:
        """From now on `name` answers with this network; `samples` are its own, to check the range of its numbers."""
        self._clients[name].offer(compile_model(model, samples))

    def summed_logits(self, querier: str, queries: Tensor, answerers: Sequence[str]) -> Tensor:
        """The sum over `answerers` of their logits (float32), as `querier` learns it."""
        if len(set(answerers) - {querier}) != len(answerers) or len(answerers) < MIN_ANSWERERS:
            raise PlanError(
                f"Expected {MIN_ANSWERERS} or more others to answer {querier}, got {', '.join(answerers) or 'nobody'}.",
                remedy="Use more clients, or a larger queries.fraction: the sum over one is its answer.",
            )
        client = self._clients[querier]
        client.ask(queries)
        sessions = self._server.open_sessions(querier, answerers)
        self._server.predict(sessions, len(queries))
        self._server.close(sessions)
        return client.take_answers().float()
