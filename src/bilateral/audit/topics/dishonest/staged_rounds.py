"""Rounds that a dishonest server stages with real clients: one round at a time, with whatever it shows them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest.attacks.split_view import StagedRound
from bilateral.audit.topics.noise.neighbouring_worlds import groundwork_of
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.learning.client import TrainingClient
from bilateral.learning.exchange import Exchange, LocalExchange, Packet
from bilateral.learning.halves import ServerHalf
from bilateral.protections.sides import ClientParts, Seat
from bilateral.protocols.messages import Message, Question, RoundModel, Upload
from bilateral.randomness import SeededRandomness


class Cast:
    """Real clients of a plan, made afresh for every trial: what one trial did to them must not help the next."""

    def __init__(self, context: Context, plan: RunPlan) -> None:
        self.around = groundwork_of(replace(context, plan=plan))
        self._federation = context.federation()
        self._blueprint = make_blueprint(plan, self._federation)
        self._sides = plan.chosen.sides(self.around)
        self._run_id = SimulatedSecrets(plan.seed, self._federation.names).run_id

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.around.names[: self.around.num_participants])

    def stage(self, round_index: int) -> StagedRound:
        return self._stage(round_index, self._blueprint.local_exchange(_unrecorded))

    def bare_stage(self, round_index: int) -> StagedRound:
        """The same clients without masks: they answer a model with their upload."""
        clients = {name: self._client(name)[0] for name in self.names}
        return self._stage(round_index, LocalExchange(clients, _unrecorded))

    def batch(self, round_index: int, name: str) -> Split:
        return self._client(name)[0].batch(round_index)

    def upload(self, round_index: int, name: str) -> Tensor:
        """What a client would send if there were no masks, noise and all."""
        client, parts = self._client(name)
        stage = self._stage(round_index, LocalExchange({name: client}, _unrecorded))
        sent = stage.send({name: (stage.model,)})[name]
        assert isinstance(sent, Upload)
        return (sent if parts.privatise is None else parts.privatise(sent)).terms.double()

    def _client(self, name: str) -> tuple[TrainingClient, ClientParts]:
        around, share = self.around, self._federation.shares[name]
        plan, parts = around.plan, self._sides.make_client(Seat(name, len(share)))
        private = parts.privatise is not None
        draws = around.secrets.training_stream(name) if private else SeededRandomness(plan.seed, "client", name)
        made = TrainingClient(
            parts.half, share, parts.schedule, draws, weight=self._sides.weight, augment=plan.training.augment
        )
        return made, parts

    def _stage(self, round_index: int, exchange: Exchange) -> StagedRound:
        half, around = self._blueprint.server().server, self.around
        model = half.start_round(round_index)
        assert isinstance(model, RoundModel)
        return StagedRound(
            exchange,
            self._run_id,
            self.names,
            self._sides.mask_settings(around.mask_settings),
            self._sides.shape,
            round_index,
            model,
            partial(_answer, half),
            half,
            self._sides.fixed_bounds,
        )


def _answer(half: ServerHalf, sender: str, reply: Message) -> Packet:
    return (half.answer(sender, reply),) if isinstance(reply, Question) else ()


def _unrecorded(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """The attacker looks at what comes back."""
