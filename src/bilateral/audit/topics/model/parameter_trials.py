"""Rounds as trials of parameter recovery: what a client has of the model, and the truth beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.audit.experiment import Context, undefended
from bilateral.audit.recording import Recording
from bilateral.audit.threat import client_view, eavesdropper_view
from bilateral.audit.topics.model.attacks.group_secrets import (
    ReceivedModel,
    fit_group_secrets,
    parameters_without_noise,
    told_secrets,
)
from bilateral.audit.topics.model.attacks.softmax_exchange import secrets_from_exchange
from bilateral.audit.topics.model.trained_runs import NUM_TRIALS, trained_plan
from bilateral.audit.views import ServerRound, View
from bilateral.engine.setup import initial_model
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.perturb.secrets import RoundSecrets


@dataclass(frozen=True)
class Trial:
    """A round: what the client has of it (without the head's noise), and the truth in the client's order."""

    kept: ServerRound
    secrets: RoundSecrets
    received: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Undefended:
    """The positive control: what FedSGD's clients are sent in each round, and the true parameters."""

    received: tuple[Tensor, ...]
    truth: tuple[Tensor, ...]

    @staticmethod
    def of(context: Context) -> Undefended:
        recording = context.record(undefended(trained_plan(context)).with_settings({"training.rounds": NUM_TRIALS + 1}))
        sent = {e.round_index: m.parameters for e, m in eavesdropper_view(recording).messages(PlainModel)}
        kept = [one for one in recording.server_rounds if one.round_index in sent]
        return Undefended(
            tuple(sent[one.round_index].double() for one in kept), tuple(one.parameters.double() for one in kept)
        )


def make_trial(recording: Recording, kept: ServerRound) -> Trial:
    secrets, index = kept.secrets, kept.round_index
    assert secrets is not None
    client = client_of(recording, index)
    view = client_view(recording, client)
    received = parameters_without_noise(view, index, _group_secrets(view, index, client))
    return Trial(kept, secrets, received, kept.parameters.double()[secrets.source])


def _group_secrets(view: View, round_index: int, client: str) -> Tensor:
    """As they come with the model, as line 2 gives them in the published cross entropy, and line 1 otherwise."""
    told = told_secrets(view, round_index)
    if told is not None:
        return told
    if view.facts.perturbation.has_exchange and view.facts.num_outputs > 2:
        return secrets_from_exchange(view, round_index, client)
    own = view.data[client]
    return fit_group_secrets(ReceivedModel.of(view, round_index, own.inputs), own, view.facts.loss)


def saw(recording: Recording, kept: ServerRound) -> bool:
    return any(index == kept.round_index for _, index in recording.batches)


def client_of(recording: Recording, round_index: int) -> str:
    return next(name for name, index in recording.batches if index == round_index)


def other_network(recording: Recording, trial: Trial) -> Tensor:
    """The architecture with initial weights of another seed, flat; another one for every trial."""
    network = initial_model(recording.plan, recording.problem, recording.plan.seed + 1 + trial.kept.round_index)
    return recording.graph.flatten(dict(network.named_parameters()), torch.float64)


def error_of(guess: Tensor, truth: Tensor) -> float:
    return float((guess - truth).norm() / truth.norm())
