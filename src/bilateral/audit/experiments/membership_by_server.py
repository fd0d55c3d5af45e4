"""Membership in a batch, by the curious server, from one round of the plan's own training and with its batch size.

- Source inference: is this sample in *that client's* batch, or in another client's of the same round? The sum and the
  model treat both alike, so that only a single upload (or a question) can tell. The scores of all (client, sample)
  pairs of a round are one trial. Tests the claim "single uploads"; where uploads are bare, ledger lines 0, 3 or 6; and
  line 8, by the questions of the cross-entropy exchange.
- The sum (line 12): is this sample in *anyone's* batch of the round, or in none? And, if the server knows how many
  samples each client has: whose is it?

Positive control: FedAvg with the same seeds, batches and samples. Negative control: the same candidates against batches
that the server made of samples of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.attacks.softmax_exchange import naive_softmax_of_query, softmax_of_query
from bilateral.audit.attacks.upload_membership import Method, match_rows, read_sum, read_upload
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiment import Context, Experiment, has_line, has_subject, undefended
from bilateral.audit.experiments.upload_scene import NUM_ROUNDS, Pair, Scene, make_scene
from bilateral.audit.membership_metrics import membership_scores
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee, Subject
from bilateral.randomness import Randomness

NUM_NULL = 60
"""Trials of the negative control, dealt over the seeds: they cost little."""
BOTH: Final = (Gate(AUC, 0.85), Gate(TPR_AT_1, 0.2))
METHODS: Final[tuple[Method, ...]] = ("likelihood ratio", "decomposition")
FEDAVG = "FedAvg, the same batches"
UNRELATED = "batches of the server's own samples in place of the clients'"


def run(context: Context) -> list[Evidence]:
    """Record a round of the plan and of FedAvg for every seed, and attack both."""
    plan = context.plan.with_settings({"training.rounds": NUM_ROUNDS})
    bare = undefended(plan)
    scenes: list[Scene] = []
    plain: list[Scene] = []
    for number in range(context.effort.seeds):
        context.on_progress(0.5 * number / context.effort.seeds, "membership by the server: recording rounds")
        seed = {"seed": (plan.seed + 1 + number) % 2**63}
        scenes.append(make_scene(context, plan.with_settings(seed), number))
        plain.append(scenes[-1] if plan == bare else make_scene(context, bare.with_settings(seed), number))
    guarantee = context.guarantee()
    context.on_progress(0.5, "membership by the server: uploads")
    found = _by_uploads(context, scenes, plain, _tested(context, guarantee))
    if has_line(guarantee, 12):
        found += _by_sum(context, scenes, plain)
    if has_line(guarantee, 8):
        found += _by_questions(context, scenes)
    context.on_progress(1.0, "membership by the server: done")
    return found


def _tested(context: Context, guarantee: Guarantee) -> Subject | int:
    if has_subject(guarantee, "single uploads"):
        return "single uploads"
    if context.plan.masks(len(context.federation().names)) == "float":
        return 6
    return 3 if context.plan.protection == "perturbation" else 0


def _by_uploads(
    context: Context, scenes: Sequence[Scene], plain: Sequence[Scene], tested: Subject | int
) -> list[Evidence]:
    evidence = []
    masked = tested == "single uploads"
    for method in METHODS:
        positive = [_upload_pair(scene, method, context, adaptive=True) for scene in plain]
        null = [pair for scene in scenes for pair in _null_sources(scene, method, context, len(scenes))]
        for adaptive in (False, True) if tested != 0 else (True,):
            read = "the round's sum, its secrets" if masked else "each upload, its secrets"
            evidence.append(
                Evidence(
                    tests=tested,
                    adversary="curious server",
                    attack=f"source of a sample by {method}",
                    adaptive=adaptive,
                    seen=read if adaptive else "the numbers of each upload as they come",
                    target=_condition(
                        f"this client's batch of {scenes[0].batch_size} or another's",
                        [_upload_pair(scene, method, context, adaptive=adaptive) for scene in scenes],
                    ),
                    positive=_condition(FEDAVG, positive),
                    negative=_condition(UNRELATED, null),
                    gates=BOTH,
                    remark="one sum gives one score a sample, whatever the client" if masked and adaptive else "",
                )
            )
    return evidence


def _upload_pair(scene: Scene, method: Method, context: Context, *, adaptive: bool) -> Pair:
    read = [read_upload(scene.view, scene.round_index, name, adaptive=adaptive) for name in scene.clients]
    uploads = torch.stack([scene.restricted(gradient) for gradient in read])
    return scene.source_pair(scene.bench.score(uploads, method, scene.batch_size, _draws(context, "shadow uploads")))


def _null_sources(scene: Scene, method: Method, context: Context, num_scenes: int) -> list[Pair]:
    count, clients = _share(num_scenes), len(scene.clients)
    uploads = scene.unrelated(count * clients, scene.batch_size, _draws(context, "unrelated", scene.round_index))
    scores = scene.bench.score(uploads, method, scene.batch_size, _draws(context, "shadow uploads"))
    return [scene.source_pair(part) for part in scores.reshape(count, clients, -1)]


def _by_sum(context: Context, scenes: Sequence[Scene], plain: Sequence[Scene]) -> list[Evidence]:
    evidence = []
    for method in METHODS:
        context.on_progress(0.75, "membership by the server: the sum")
        positive = [_sum_pair(scene, method, context, adaptive=True) for scene in plain]
        null = [pair for scene in scenes for pair in _null_sums(scene, method, context, len(scenes))]
        for adaptive in (False, True):
            target = [_sum_pair(scene, method, context, adaptive=adaptive) for scene in scenes]
            evidence.append(
                Evidence(
                    tests=12,
                    adversary="curious server",
                    attack=f"membership in the sum by {method}",
                    adaptive=adaptive,
                    seen="the round's sum" + (", its secrets" if adaptive else " as it comes"),
                    target=_condition(f"in anyone's batch (together {_total(scenes[0])} samples) or in none", target),
                    positive=_condition(FEDAVG, positive),
                    negative=_condition(UNRELATED, null),
                    gates=BOTH,
                    remark="the server has the samples in question, as in every membership game",
                )
            )
    if len({round(weight, 9) for weight in _weights(scenes[0]).tolist()}) > 1:
        evidence.append(_by_sizes(context, scenes, plain))
    return evidence


def _total(scene: Scene) -> int:
    return int(scene.batch_sizes.sum())


def _sum_scores(scene: Scene, method: Method, context: Context, gradients: Tensor) -> Tensor:
    return scene.bench.score(gradients, method, _total(scene), _draws(context, "shadow sums"))


def _sum_pair(scene: Scene, method: Method, context: Context, *, adaptive: bool) -> Pair:
    total = scene.restricted(read_sum(scene.view, scene.round_index, adaptive=adaptive))
    return scene.sum_pair(_sum_scores(scene, method, context, total[None])[0])


def _null_sums(scene: Scene, method: Method, context: Context, num_scenes: int) -> list[Pair]:
    sums = scene.unrelated(_share(num_scenes), _total(scene), _draws(context, "unrelated sums", scene.round_index))
    return [scene.sum_pair(row) for row in _sum_scores(scene, method, context, sums)]


def _by_sizes(context: Context, scenes: Sequence[Scene], plain: Sequence[Scene]) -> Evidence:
    """A sample's weight in the sum is that of its client: sizes that differ give the source away."""

    def pairs(scene: Scene, sums: Tensor) -> list[Pair]:
        read = _sum_scores(scene, "decomposition", context, sums)
        return [scene.source_pair(-(row[None, :] - _weights(scene)[:, None]).abs()) for row in read]

    def target(scene: Scene) -> Pair:
        return pairs(scene, scene.restricted(read_sum(scene.view, scene.round_index, adaptive=True))[None])[0]

    def null(scene: Scene) -> list[Pair]:
        draws = _draws(context, "unrelated sums", scene.round_index)
        return pairs(scene, scene.unrelated(_share(len(scenes)), _total(scene), draws))

    return Evidence(
        tests=12,
        adversary="curious server",
        attack="source of a sample by its weight in the sum",
        adaptive=True,
        seen="the round's sum, its secrets, and how many samples each client has",
        target=_condition("this client's batch or another's", [target(scene) for scene in scenes]),
        positive=_condition(
            f"{FEDAVG}, each upload decomposed",
            [_upload_pair(scene, "decomposition", context, adaptive=True) for scene in plain],
        ),
        negative=_condition(UNRELATED, [p for scene in scenes for p in null(scene)]),
        gates=BOTH,
        remark=f"clients have {', '.join(str(int(size)) for size in scenes[0].sizes)} samples",
    )


def _weights(scene: Scene) -> Tensor:
    """What one sample of each client's batch weighs in the sum."""
    return scene.sizes.double() / scene.sizes.sum() / scene.batch_sizes


def _by_questions(context: Context, scenes: Sequence[Scene]) -> list[Evidence]:
    def in_the_clear(scene: Scene) -> list[Tensor]:
        own = _softmax(scene, scene.candidates.inputs)
        return [own[scene.owner == number] for number in range(len(scene.clients))]

    null = [pair for scene in scenes for pair in _null_questions(scene, context, len(scenes))]
    evidence = []
    for adaptive, read in ((False, naive_softmax_of_query), (True, softmax_of_query)):
        asked = [[read(scene.view, scene.round_index, name) for name in scene.clients] for scene in scenes]
        target = [pair for scene, rows in zip(scenes, asked, strict=True) for pair in _matches(scene, [rows])]
        evidence.append(
            Evidence(
                tests=8,
                adversary="curious server",
                attack="source of a sample by the softmax in the question",
                adaptive=adaptive,
                seen="each client's question" + (", its secrets" if adaptive else " as it comes"),
                target=_condition("this client's batch or another's", target),
                positive=_condition(
                    "questions in the clear", [p for s in scenes for p in _matches(s, [in_the_clear(s)])]
                ),
                negative=_condition("questions about samples of the server's own", null),
                gates=BOTH,
            )
        )
    return evidence


def _matches(scene: Scene, trials: Sequence[Sequence[Tensor]]) -> list[Pair]:
    """One pair a trial; a trial is the rows of each client's question."""
    own = _softmax(scene, scene.candidates.inputs)
    return [scene.source_pair(torch.stack([match_rows(rows, own) for rows in trial])) for trial in trials]


def _null_questions(scene: Scene, context: Context, num_scenes: int) -> list[Pair]:
    rows = _softmax(scene, scene.unrelated_samples.inputs)
    draws = _draws(context, "unrelated questions", scene.round_index)
    picked = (draws.uniform(_share(num_scenes), len(scene.clients), scene.batch_size) * len(rows)).long()
    return _matches(scene, [[rows[of_client] for of_client in trial] for trial in picked])


def _softmax(scene: Scene, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(scene.network(inputs).double(), 1)


def _condition(what: str, pairs: Sequence[Pair]) -> Condition:
    return Condition(what, membership_scores(pairs))


def _share(num_scenes: int) -> int:
    """Trials of the negative control for each seed."""
    return -(-NUM_NULL // num_scenes)


def _draws(context: Context, *labels: str | int) -> Randomness:
    return context.randomness("upload membership", *labels)


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    if len(plan.data.sites) == 1 or (not plan.data.sites and plan.federation.clients == 1):
        return "with a single client there is no other source"
    return ""


EXPERIMENT: Final = Experiment(
    "membership-by-server", "Membership in a client's batch, by the curious server", _applies, run, weight=30.0
)
