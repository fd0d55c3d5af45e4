"""The same models, round by round, under another protection.

What a client is sent of a model does not depend on how the model came about. So models are trained once, by FedSGD, and
all protections are attacked at the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.audit.experiment import Context
from bilateral.audit.recording import Recording, record
from bilateral.audit.sealed_recording import SealedRecording
from bilateral.audit.sealed_views import SealedView
from bilateral.audit.topics.sealed.attacks.extraction import as_view, read_model
from bilateral.audit.views import View
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan

BATCH: Final = 8


def record_twin(plan: RunPlan, federation: Federation, bare: Recording, rounds: Sequence[int]) -> Recording:
    """Rounds of `plan` at the models that `bare` had in `rounds`; they are counted from 0."""
    kept = [bare.server_round(index).parameters for index in rounds]

    def choose(index: int, model: nn.Module) -> None:
        values = bare.graph.unflatten(kept[index])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name])

    short = plan.with_settings(
        {"training.rounds": len(kept), "training.batch_size": BATCH, "training.augment": False, "seed": bare.plan.seed}
    )
    return record(short, federation, before_round=choose)


def client_makes_of(
    context: Context,
    twin: SealedRecording,
    client: str,
    *,
    adaptive: bool,
    random: int | None = None,
    only: int | None = None,
) -> View:
    """The view of a client of a sealed run with what it made of the models (of that round `only`).

    `random`: of words of that draw. What the recording holds of its steps is found once for all views.
    """
    view = twin.view("curious client", lambda _: frozenset({client}))
    if random is not None:
        view = with_random_words(context, view, random)
    rounds = [kept.round_index for kept in twin.recording.server_rounds] if only is None else [only]
    models = {index: read_model(view, index, client, adaptive=adaptive) for index in rounds}
    return as_view(view, client, models, twin.recording.shares[client])


def with_random_words(context: Context, view: SealedView, number: int) -> SealedView:
    """The negative control: whatever came is replaced by words that nobody made."""
    draws = context.randomness("random words", number).torch_generator()

    def drawn(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        low, high = -(1 << 63), (1 << 63) - 1
        return tuple(torch.randint(low, high, tuple(part.shape), generator=draws, dtype=part.dtype) for part in parts)

    return replace(view, steps=tuple(replace(one, weights=drawn(one.weights)) for one in view.steps))
