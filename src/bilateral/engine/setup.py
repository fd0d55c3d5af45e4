"""From a plan to trainings that can be advanced round by round."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bilateral.engine.federation import Federation, analyse, initial_model
from bilateral.engine.plan import RunPlan
from bilateral.engine.stack import build_stack
from bilateral.learning.client import TrainingClient
from bilateral.learning.optimiser import ServerOptimiser
from bilateral.learning.training import Training
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.batch_check import check_batch
from bilateral.randomness import SeededRandomness

REFERENCE = "fedavg"
"""The name of a training without any protection."""


def reference_plan(plan: RunPlan) -> RunPlan:
    """The same plan as plain FedAvg."""
    bare = {"protection": "fedavg", "aggregation.masks": "none", "noise.mechanism": "none"}
    return plan.with_settings(bare)


def build_trainings(plans: Sequence[RunPlan], federation: Federation) -> list[Training]:
    """One training per plan (they differ in protection only), all from the same initial model and batches."""
    graph = analyse(plans[0], federation)
    return [build_training(plan, federation, initial_model(plan, federation), graph) for plan in plans]


def build_training(
    plan: RunPlan, federation: Federation, model: nn.Module, graph: ScaleGraph, *, reordering: int = 0
) -> Training:
    """The plan's protections around `model`, and its clients."""
    stack = build_stack(plan, federation, model, graph)
    if plan.noise.mechanism == "sound":
        for owner in federation.clients:  # once and before the first round: later an error would be an answer
            check_batch(owner.name, owner.data.inputs, owner.data.targets, graph, federation.loss)
    # Where a claim rests on it, what a client draws while training (dropout, augmentation) is a secret of its own.
    stream = "secrets of" if plan.noise.mechanism == "sound" else "client"
    clients = [
        TrainingClient(
            half,
            owner.data,
            schedule,
            SeededRandomness(plan.seed, stream, owner.name),
            uploader=uploader,
            weight=stack.weight,
            augment=plan.training.augment,
            reordering=reordering,
        )
        for half, owner, schedule, uploader in zip(
            stack.halves, federation.clients, stack.schedules, stack.uploaders, strict=True
        )
    ]
    return Training(
        stack.name,
        model,
        graph,
        stack.server,
        stack.aggregation,
        clients,
        ServerOptimiser(model, graph, plan.training.optimiser_settings()),
        plan.training.rounds,
        stack.guarantee,
        stack.privacy,
    )
