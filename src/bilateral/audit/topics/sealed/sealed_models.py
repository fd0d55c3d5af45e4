"""What a client makes of the models of sealed rounds: nothing, where the same attacks succeed without sealing.

| row                    | a trial | what is attacked                                                     |
|------------------------|---------|----------------------------------------------------------------------|
| the function           | a round | agreement on unseen samples                                          |
| parameters             | a round | relative error                                                       |
| softmax values         | a round | of the client's own samples                                          |
| membership             | a run   | other clients' samples, by the outputs and by networks on layers     |

The models are the same in all conditions (`sealed_twins`): trained by FedSGD until they have memorised their samples.
Positive controls: FedSGD, and perturbation with its group secrets fitted. Negative: a client that is sent random words.
And pairs that collude are shown to have what the guarantee says (line 17).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_subject, undefended
from bilateral.audit.ledger import SEALED_LINE
from bilateral.audit.membership_metrics import membership_scores
from bilateral.audit.recording import Recording, record
from bilateral.audit.scores import AGREEMENT, AUC, INPUT_ERROR, PARAMETER_ERROR, SOFTMAX_ERROR, Metric, Scores
from bilateral.audit.sealed_recording import SealedRecording
from bilateral.audit.threat import client_view
from bilateral.audit.topics.membership.attacks.membership import (
    ModelReading,
    attack_network,
    loss_threshold,
    read_model,
)
from bilateral.audit.topics.membership.membership_game import Dealt, Game, make_game
from bilateral.audit.topics.model.attacks.group_secrets import Outputs, fit_outputs
from bilateral.audit.topics.sealed.attacks.extraction import read_batch_by_pair, read_by_pair
from bilateral.audit.topics.sealed.attacks.extraction import read_model as read_words
from bilateral.audit.topics.sealed.sealed_twins import client_makes_of, record_twin
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import RoundModel
from bilateral.protocols.transport import SERVER

PREDICTION_ERROR: Final = Metric("relative error of predictions", "low")
NUM_TRIALS: Final = 12
NUM_UNSEEN: Final = 300
NULL_DRAWS: Final = 40
LARGEST_ERROR: Final = 10.0
"""So that a mean says something."""
READ_PARAMETERS: Final = 0.05
READ_SOFTMAX: Final = 0.1
_ADAPTIVE: Final = "all masks taken off that its seeds give"
_DISGUISED: Final = "perturbation"
"""Of the runs that these are compared with."""
_NAIVE: Final = "words as they come"
_DEPTH: Final = 2


@dataclass(frozen=True, eq=False)
class _Scene:
    """One trained run of FedSGD, and the same models under the plan and under perturbation."""

    context: Context
    game: Game
    dealt: Dealt
    bare: Recording
    rounds: tuple[int, ...]
    sealed: SealedRecording
    perturbed: Recording

    @property
    def client(self) -> str:
        return self.game.attacker

    def parameters(self, trial: int) -> Tensor:
        return self.bare.server_round(self.rounds[trial]).parameters

    def views(self) -> dict[str, View]:
        """By condition. FedSGD's rounds are counted anew, as in the twins."""
        return {
            _NAIVE: client_makes_of(self.context, self.sealed, self.client, adaptive=False),
            _ADAPTIVE: client_makes_of(self.context, self.sealed, self.client, adaptive=True),
            "random": client_makes_of(self.context, self.sealed, self.client, adaptive=True, random=0),
            "FedSGD": client_view(
                record_twin(undefended(self.game.plan), self.federation, self.bare, self.rounds), self.client
            ),
            _DISGUISED: client_view(self.perturbed, self.client),
        }

    def random_views(self, count: int) -> list[View]:
        """Of a client that is sent random words, drawn anew each time, with what it made of the last model."""
        last = len(self.rounds) - 1
        return [
            client_makes_of(self.context, self.sealed, self.client, adaptive=True, random=number, only=last)
            for number in range(count)
        ]

    @property
    def federation(self) -> Federation:
        return self.game.federation_of(self.dealt)


def _scene(context: Context, game: Game, number: int, count: int) -> _Scene:
    """A run with samples dealt anew; the models of its last rounds."""
    dealt = game.deal(context.randomness("sealed models", "run", number))
    federation = game.federation_of(dealt)
    seeded = game.plan.with_settings({"seed": (context.plan.seed + 1 + number) % 2**63})
    last = range(max(0, seeded.training.rounds - count), seeded.training.rounds)
    bare = record(undefended(seeded), federation, keep=last)
    rounds = tuple(last)
    perturbed = seeded.with_settings({"protection": "perturbation", "aggregation.masks": "none"})
    return _Scene(
        context,
        game,
        dealt,
        bare,
        rounds,
        SealedRecording(record_twin(seeded, federation, bare, rounds)),
        record_twin(perturbed, federation, bare, rounds),
    )


def run(context: Context) -> Sequence[Evidence]:
    """Everything on the models of one run; membership on several."""
    game = make_game(context)
    seeds = context.effort.seeds
    scenes, views = [], []
    for number in range(seeds):
        context.on_progress(0.1 + 0.6 * number / seeds, "sealed models: training, and the same models sealed")
        scenes.append(_scene(context, game, number, NUM_TRIALS if number == 0 else 1))
        views.append(scenes[-1].views())
    context.on_progress(0.7, "sealed models: reading them")
    found = [*_functions(scenes[0], views[0]), *_parameters(scenes[0], views[0]), *_softmax(scenes[0], views[0])]
    context.on_progress(0.8, "sealed models: membership")
    found += _membership(context, scenes, views)
    context.on_progress(0.95, "sealed models: pairs that collude")
    found += _pairs(scenes[0])
    context.on_progress(1.0, "sealed models: done")
    return found


def _rows(
    attack: str,
    gate: Gate,
    score: Callable[[str], Scores],
    where: str,
    *,
    perturbation: bool = True,
    paired: bool = True,
) -> list[Evidence]:
    """Of one attack: naive and adaptive, against FedSGD, and the adaptive one also against perturbation."""
    ways = [(_NAIVE, "FedSGD", False), (_ADAPTIVE, "FedSGD", True)]
    if perturbation:
        ways.append((_ADAPTIVE, _DISGUISED, True))
    words = {"FedSGD": "the same models under FedSGD", _DISGUISED: "under perturbation, group secrets fitted"}
    return [
        with_controls(
            "sealed model",
            "curious client",
            attack,
            f"masked weights, what it was dealt and heard: {way}",
            gate,
            target=Condition(where, (score(way),)),
            positive=Condition(words[control], (score(control),)),
            negative=Condition("a client that is sent random words", (score("random"),)),
            adaptive=adaptive,
            paired=paired,
        )
        for way, control, adaptive in ways
    ]


def _functions(scene: _Scene, views: dict[str, View]) -> list[Evidence]:
    unseen = scene.bare.test.inputs[:NUM_UNSEEN]
    is_classes = scene.bare.problem.task == "classification"
    metric = AGREEMENT if is_classes else PREDICTION_ERROR
    facts = views[_ADAPTIVE].facts
    truths = [_outputs(facts.network(scene.parameters(trial)))(unseen) for trial in range(len(scene.rounds))]

    def score(condition: str) -> Scores:
        values = []
        for trial, truth in enumerate(truths):
            found = _made(scene, views[condition], condition, trial)(unseen)
            values.append(_agreement(found, truth) if is_classes else _relative(found, truth))
        return Scores(metric, tuple(values))

    gate = Gate(AGREEMENT, 0.95) if is_classes else Gate(PREDICTION_ERROR, 0.1)
    return _rows("the model's function", gate, score, f"the models of {len(truths)} rounds, sealed")


def _parameters(scene: _Scene, views: dict[str, View]) -> list[Evidence]:
    def score(condition: str) -> Scores:
        values = []
        for trial in range(len(scene.rounds)):
            sent = views[condition].message(RoundModel, round_index=trial)
            assert sent is not None
            values.append(_relative(sent.parameters.double(), scene.parameters(trial)))
        return Scores(PARAMETER_ERROR, tuple(values))

    gate = Gate(PARAMETER_ERROR, READ_PARAMETERS)
    where = f"the models of {len(scene.rounds)} rounds, sealed"
    return _rows("values of the parameters", gate, score, where, perturbation=False)


def _softmax(scene: _Scene, views: dict[str, View]) -> list[Evidence]:
    if scene.bare.problem.loss != "ce":
        return []
    own, facts = scene.game.own_labelled.inputs, views[_ADAPTIVE].facts

    def score(condition: str) -> Scores:
        values = []
        for trial in range(len(scene.rounds)):
            truth = _outputs(facts.network(scene.parameters(trial)))(own).softmax(1)
            found = _made(scene, views[condition], condition, trial)(own).softmax(1)
            values.append(float((found - truth).abs().max()))
        return Scores(SOFTMAX_ERROR, tuple(values))

    return _rows("softmax of its own samples", Gate(SOFTMAX_ERROR, READ_SOFTMAX), score, "its own samples, sealed")


def _membership(context: Context, scenes: Sequence[_Scene], views: Sequence[dict[str, View]]) -> list[Evidence]:
    game = scenes[0].game

    def by_threshold(reading: ModelReading, number: int) -> Tensor:  # noqa: ARG001
        return loss_threshold(reading, game.pool)

    def by_network(reading: ModelReading, number: int) -> Tensor:
        return attack_network(
            reading, game.known, game.pool, _DEPTH, context.randomness("sealed models", "network", number)
        )

    found = []
    for name, attack in (("loss threshold", by_threshold), ("attack network, last two layers", by_network)):

        def score(condition: str, attack: Callable[[ModelReading, int], Tensor] = attack) -> Scores:
            pairs = []
            for number, (scene, seen) in enumerate(zip(scenes, views, strict=True)):
                shown = (
                    scene.random_views(-(-NULL_DRAWS // len(scenes))) if condition == "random" else [seen[condition]]
                )
                for view in shown:
                    fits = condition in (_ADAPTIVE, _DISGUISED)
                    reading = read_model(view, len(scene.rounds) - 1, game.own_labelled, adaptive=fits)
                    scores = torch.nan_to_num(attack(reading, number))
                    pairs.append((scores[scene.dealt.members], scores[scene.dealt.strangers]))
            return next(one for one in membership_scores(pairs) if one.metric == AUC)

        rows = _rows(
            f"membership by {name}", Gate(AUC, 0.85), score, f"other clients' samples; {game.kind}", paired=False
        )
        found += rows
    return found


def _pairs(scene: _Scene) -> list[Evidence]:
    """Line 17, carried out: a client with its dealer has the model, the server with a client's dealer the batch."""
    sealed, client = scene.sealed, scene.client
    unseen = scene.bare.test.inputs[:NUM_UNSEEN]
    rounds = range(len(scene.rounds))
    with_dealer = sealed.view("client with its dealer", lambda dealers: frozenset({client, dealers[client]}))
    alone = sealed.view("curious client", lambda _: frozenset({client}))
    truths = [scene.parameters(trial) for trial in rounds]
    facts = with_dealer.facts

    def models(found: Sequence[Tensor]) -> tuple[Scores, ...]:
        errors = tuple(_relative(one, truth) for one, truth in zip(found, truths, strict=True))
        agree = tuple(
            _agreement(_outputs(facts.network(one))(unseen), _outputs(facts.network(truth))(unseen))
            for one, truth in zip(found, truths, strict=True)
        )
        scores = (Scores(PARAMETER_ERROR, errors), Scores(AGREEMENT, agree))
        return scores if scene.bare.problem.task == "classification" else scores[:1]

    gates = (Gate(PARAMETER_ERROR, READ_PARAMETERS),)
    rows = [
        with_controls(
            SEALED_LINE,
            "client with its dealer",
            "the model of a round, from what both were given",
            "masked weights, the seed of dealer and server",
            gates,
            target=Condition(
                "the models, sealed", models([read_by_pair(with_dealer, index, client) for index in rounds])
            ),
            positive=Condition("the same models under FedSGD", models(truths)),
            negative=Condition(
                "the client alone", models([read_words(alone, index, client, adaptive=True) for index in rounds])
            ),
        )
    ]
    return [*rows, _batches(scene, sealed)]


def _batches(scene: _Scene, sealed: SealedRecording) -> Evidence:
    client = scene.client
    view = sealed.view("server with a client's dealer", lambda dealers: frozenset({SERVER, dealers[client]}))
    found, others, classes = [], [], []
    front = sealed.network.front_state(scene.sealed.recording.initial)
    unseen = sealed.network.through_front(front, scene.bare.test.inputs[:NUM_UNSEEN])
    for index in range(len(scene.rounds)):
        seen = view.step(index, client)
        assert seen is not None
        truth = sealed.batch_of(client, index)
        other = unseen.roll(-index * len(truth), 0)[: len(truth)]
        inputs, targets = read_batch_by_pair(seen)
        rows = truth.inputs.double().reshape(inputs.shape)
        found.append(_relative(inputs, rows))
        others.append(_relative(other.double().reshape(inputs.shape), rows))
        classes.append(_read_labels(targets, truth))
    own = Condition("a client's batch, sealed", (Scores(INPUT_ERROR, tuple(found)),))
    labels = f"; labels read: {sum(classes) / len(classes):.2f}" if scene.bare.problem.loss == "ce" else ""
    return with_controls(
        SEALED_LINE,
        "server with a client's dealer",
        "a client's batch of a round, from what both were given",
        "masked inputs, the seed of dealer and client",
        Gate(INPUT_ERROR, READ_PARAMETERS),
        target=own,
        positive=("the batch itself", [0.0] * len(found)),
        negative=("samples of nobody's", others),
        remark=f"a trial is a round{labels}",
    )


def _read_labels(errors: Tensor, batch: Split) -> float:
    if not len(errors) or batch.targets.dim() > 1:
        return 0.0
    return float((errors.argmax(1) == batch.targets).double().mean())


def _made(scene: _Scene, view: View, condition: str, trial: int) -> Outputs:
    if condition == _DISGUISED:
        return fit_outputs(view, trial, scene.game.own_labelled)
    sent = view.message(RoundModel, round_index=trial)
    assert sent is not None
    return _outputs(view.facts.network(sent.parameters))


def _outputs(network: torch.nn.Module) -> Outputs:
    network = network.eval()
    dtype = next(network.parameters()).dtype

    def outputs(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = network(inputs.to(dtype))
        return found.double()

    return outputs


def _agreement(found: Tensor, truth: Tensor) -> float:
    return float((found.argmax(1) == truth.argmax(1)).double().mean())


def _relative(found: Tensor, truth: Tensor) -> float:
    length = float(truth.double().norm())
    return min(LARGEST_ERROR, float((found.double() - truth.double()).norm()) / max(length, 1e-12))


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_subject(guarantee, "sealed model"):
        return "clients are sent a model"
    return "a single client has no other clients" if plan.federation.num_clients == 1 else ""


EXPERIMENT: Final = Experiment(
    "sealed-models",
    "Function, parameters, softmax and membership, by clients of sealed training; pairs that collude",
    ("sealed model", SEALED_LINE),
    _applies,
    run,
    weight=60.0,
)
