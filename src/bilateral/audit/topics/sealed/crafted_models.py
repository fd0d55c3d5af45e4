"""Ledger line 18: samples out of a sum, by a server that crafts the model or sends clients different ones.

| row                      | target                 | positive control            | negative control               |
|--------------------------|------------------------|-----------------------------|--------------------------------|
| bins                     | sealed; and ring masks | FedSGD, one client's upload | the same reading, plan's model |
| bins, one class fished   | sealed; and ring masks | FedSGD, one client's upload | the same reading, plan's model |
| one client's own weights | sealed                 | FedSGD, its upload          | the mean of the sum            |

Reported as they are: a client cannot inspect a sealed model, and need not be able to tell a crafted one where it can.
The curve has what larger sums do, and sound noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.audit.evidence import Curve, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.ledger import CRAFTED_LINE
from bilateral.audit.recording import Recording, record
from bilateral.audit.scores import Metric, Scores, mean_interval
from bilateral.audit.topics.inversion.attacks.analytic import first_linear
from bilateral.audit.topics.sealed.attacks.planted_neurons import nearest_errors, read_bins, with_bins
from bilateral.audit.topics.sealed.attacks.split_weights import CraftingServer, SplitServer
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import initial_model
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Upload

READ: Final = Metric("samples read out of a sum", "high", is_rate=True, digits=2)
OBTAINED: Final = Metric("gradients of one client obtained", "high", is_rate=True, digits=2)
SUCCESS: Final = 0.1
"""Relative error of a sample or a gradient that counts as read."""
ROUNDS: Final = 4
FISHED: Final = 6
"""Classes, one after the other."""
NUM_VICTIMS: Final = 12
BATCH: Final = 4
LARGER: Final = (1, 4, 16)
"""Times the size of a batch, for the curve."""
STAND_IN: Final = {"model.name": "mlp-3", "model.options": {"width": 128}}
NOISE: Final = {"protection": "fedsgd", "aggregation.masks": "ring", "noise.mechanism": "sound", "noise.epsilon": 8.0}


@dataclass(frozen=True, eq=False)
class _Bench:
    """A plan of a few rounds on one network, and the models that its server may craft."""

    context: Context
    plan: RunPlan
    remark: str
    layer: str

    @staticmethod
    def of(context: Context) -> _Bench:
        """The plan's own network if it begins with a Linear that has a bias, or a stand-in."""
        small = {"training.rounds": ROUNDS, "training.batch_size": BATCH, "training.augment": False}
        plan = context.plan.with_settings({**small, "federation.participation": 1.0})
        problem, remark = context.federation(plan).problem, ""
        layer = first_linear(initial_model(plan, problem), problem.input_shape)
        if layer is None:
            plan, remark = plan.with_settings(STAND_IN), "; on a stand-in, an MLP: the plan's own begins otherwise"
            layer = first_linear(initial_model(plan, problem), problem.input_shape)
        assert layer is not None
        return _Bench(context, plan, remark, layer)

    def model(self, fished: int | None = None) -> nn.Module:
        federation = self.context.federation(self.plan)
        own = initial_model(self.plan, federation.problem)
        return with_bins(own, federation.test_data.inputs, fished)

    def record(self, plan: RunPlan, crafted: nn.Module | None) -> Recording:
        def choose(_: int, model: nn.Module) -> None:
            if crafted is not None:
                model.load_state_dict(crafted.state_dict())

        crafts = crafted is not None and plan.traits.computes_on_shares
        federation = self.context.federation(plan)
        if crafts:
            return record(plan, federation, before_round=choose, played_by=CraftingServer.of)
        return record(plan, federation, before_round=choose)

    def errors(self, recording: Recording, fished: int | None, *, alone: bool = False) -> list[float]:
        """Of every sample in every sum (of the fished class, if any); `alone`: of every upload by itself."""
        found: list[float] = []
        for kept in recording.server_rounds:
            names = kept.total.contributors
            index = kept.round_index
            sources: list[tuple[tuple[str, ...], Tensor]] = [(names, kept.recovered())]
            if alone:
                sources = [((name,), _upload_gradient(recording, index, name)) for name in names]
            for who, gradient in sources:
                candidates = read_bins(recording.graph, self.layer, gradient)
                samples = [
                    inputs
                    for name in who
                    for inputs, target in zip(*_rows(recording, name, index), strict=True)
                    if fished is None or int(target) == fished
                ]
                found += nearest_errors(candidates, samples)
        return found


def _rows(recording: Recording, name: str, index: int) -> tuple[Tensor, Tensor]:
    batch = recording.batches[name, index]
    targets = batch.targets
    return batch.inputs, targets if targets.dim() == 1 else targets.argmax(1)


def _upload_gradient(recording: Recording, index: int, name: str) -> Tensor:
    upload = next(
        entry.message
        for entry in recording.transcript.entries
        if entry.round_index == index and entry.sender == name and isinstance(entry.message, Upload)
    )
    return recording.server_round(index).gradient_of(upload, name)


def run(context: Context) -> Sequence[Evidence]:
    bench = _Bench.of(context)
    found: list[Evidence] = []
    kinds: list[tuple[str, tuple[int | None, ...]]] = [("bins in the first layer", (None,))]
    if context.federation().problem.loss == "ce":
        classes = torch.unique(context.federation().test_data.targets)[:FISHED].tolist()
        kinds.append(("bins, with one class fished", tuple(int(one) for one in classes)))
    for number, (name, fished) in enumerate(kinds):
        context.on_progress(0.6 * number / len(kinds), f"crafted models: {name}")
        found += _planted(bench, name, fished)
    context.on_progress(0.6, "crafted models: other weights for each client")
    found.append(_split(bench))
    context.on_progress(1.0, "crafted models: done")
    return found


def _planted(bench: _Bench, name: str, fished: Sequence[int | None]) -> list[Evidence]:
    plan = bench.plan
    masks = plan.with_settings({"protection": "fedsgd", "aggregation.masks": "ring"})
    crafted = {one: bench.model(one) for one in fished}

    def read(chosen: RunPlan, *, alone: bool = False) -> list[float]:
        return _read([e for one, m in crafted.items() for e in bench.errors(bench.record(chosen, m), one, alone=alone)])

    honest = bench.record(plan, None)
    negative = _read([error for one in fished for error in bench.errors(honest, one)])
    positive, size = read(undefended(plan), alone=True), sum(len(honest.batches[who, 0]) for who in honest.shares)
    return [
        with_controls(
            CRAFTED_LINE,
            "dishonest server",
            f"{name} ({what})",
            f"the sum over {size} samples of {len(honest.shares)} clients, at a model of its making",
            Gate(READ, 0.5),
            target=(what, read(chosen)),
            positive=("FedSGD, from a client's own upload", positive),
            negative=("the same reading at the plan's model", negative),
            paired=False,
            remark=f"a trial is a sample{bench.remark}; noise that bounds it: noise.mechanism = 'sound'",
            curves=_curve(bench, crafted[None]) if chosen is plan and None in crafted else (),
        )
        for what, chosen in {"sealed training": plan, "ring masks": masks}.items()
    ]


def _read(errors: Sequence[float]) -> list[float]:
    return [float(error < SUCCESS) for error in errors]


def _curve(bench: _Bench, crafted: nn.Module) -> tuple[Curve, ...]:
    """Over the size of the sum: masks (as sealed training, and quicker), and the same with sound noise."""

    def line(settings: dict[str, object]) -> tuple[tuple[float, float, float, float], ...]:
        points = []
        for times in LARGER:
            plan = bench.plan.with_settings({**settings, "training.batch_size": BATCH * times})
            recording = bench.record(plan, crafted)
            found = _read(bench.errors(recording, None))
            size = sum(len(recording.batches[who, 0]) for who in recording.shares)
            points.append((float(size), sum(found) / len(found), *mean_interval(found)))
        return tuple(points)

    lines = {"masked sum": line({"protection": "fedsgd", "aggregation.masks": "ring"}), "with sound noise": line(NOISE)}
    return (Curve("What planted neurons read, over the size of the sum", "samples in the sum", READ.name, lines),)


def _split(bench: _Bench) -> Evidence:
    """One client gets the weights, the others zeros."""
    plan, federation = bench.plan, bench.context.federation(bench.plan)
    names = federation.names
    read, honest, bare = [], [], []
    for trial in range(NUM_VICTIMS):
        victim = names[trial % len(names)]
        seeded = plan.with_settings({"seed": plan.seed + trial, "training.rounds": 1})
        gradient = _split_round(bench, seeded, victim)
        plain = bench.record(undefended(seeded), None)
        own = _weights_of(plain, _upload_gradient(plain, 0, victim))
        total = _weights_of(plain, plain.server_rounds[0].recovered())
        read.append(_apart(_weights_of(plain, gradient), own))
        honest.append(_apart(total, own))
        bare.append(0.0)
    return with_controls(
        CRAFTED_LINE,
        "dishonest server",
        "its weights for one client, zeros for the others",
        f"the sum of {len(names)} clients",
        Gate(OBTAINED, 0.9),
        target=("sealed training", Scores(OBTAINED, tuple(_read(read)))),
        positive=("FedSGD, the client's upload", Scores(OBTAINED, tuple(_read(bare)))),
        negative=("the sum of a round in which all have the same", Scores(OBTAINED, tuple(_read(honest)))),
        remark="under masks alone clients that are shown different models refuse (`dishonest-server`)",
    )


def _split_round(bench: _Bench, plan: RunPlan, victim: str) -> Tensor:
    """The sum's gradient, as recovery makes it."""
    recording = record(plan, bench.context.federation(plan), played_by=lambda half: SplitServer.against(half, victim))
    return recording.server_rounds[0].recovered()


def _weights_of(recording: Recording, gradient: Tensor) -> Tensor:
    """Weights alone, as a direction: biases of the head are everybody's."""
    values = recording.graph.unflatten(gradient.double())
    return torch.cat([values[name].reshape(-1) for name in values if name.endswith("weight")])


def _apart(one: Tensor, other: Tensor) -> float:
    unit = [found / found.norm().clamp_min(1e-30) for found in (one, other)]
    return float((unit[0] - unit[1]).norm())


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, CRAFTED_LINE) else "the plan says nothing about a server that crafts models"


EXPERIMENT: Final = Experiment(
    "crafted-models",
    "Samples out of a sum, by planted neurons, class fishing, and other weights for each client",
    (CRAFTED_LINE,),
    _applies,
    run,
    weight=40.0,
)
