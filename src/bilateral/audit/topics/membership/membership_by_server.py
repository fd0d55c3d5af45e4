"""Membership in a batch, by the curious server, from one round of the plan's own training and with its batch size.

- Source inference: is this sample in *that client's* batch, or in another client's of the same round? The sum and the
  model treat both alike, so that only a single upload (or a question) can tell. The scores of all (client, sample)
  pairs of a round are one trial. Tests the claim "single uploads"; where uploads are bare, ledger lines 0, 3 or 6; and
  lines 8 and 10, by the questions of the cross-entropy exchange (`membership_by_questions`).
- The sum (line 12): is this sample in *anyone's* batch of the round, or in none? And, if the server knows how many
  samples each client has: whose is it?

Positive control: FedSGD with the same seeds, batches and samples. Negative control: the same candidates against batches
that the server made of samples of its own; for what is read as it comes, the same numbers shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import ON_UPLOADS, Context, Experiment, has_line, subject_of_uploads, undefended
from bilateral.audit.membership_metrics import membership_scores
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.topics.membership.attacks.upload_membership import Method, read_sum, read_upload
from bilateral.audit.topics.membership.membership_by_questions import by_questions
from bilateral.audit.topics.membership.upload_scene import NUM_ROUNDS, Pair, Scene, make_scene
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee, Subject
from bilateral.randomness import Randomness

NUM_NULL = 60
"""Trials of the negative control, dealt over the seeds: they cost little."""
BOTH: Final = (Gate(AUC, 0.85), Gate(TPR_AT_1, 0.2))
METHODS: Final[tuple[Method, ...]] = ("likelihood ratio", "pairwise likelihood ratio", "decomposition")
FEDAVG = "FedSGD, the same seeds and samples"
UNRELATED = "batches of the server's own samples in place of the clients'"
SHUFFLED = "the same numbers, shuffled"


def run(context: Context) -> list[Evidence]:
    """Record a round of the plan and of FedSGD for every seed, and attack both."""
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
    found = _by_uploads(context, scenes, plain, subject_of_uploads(guarantee))
    if has_line(guarantee, 12):
        found += _by_sum(context, scenes, plain)
    found += by_questions(context, scenes, guarantee)
    context.on_progress(1.0, "membership by the server: done")
    return found


def _by_uploads(
    context: Context, scenes: Sequence[Scene], plain: Sequence[Scene], tested: Subject | int
) -> list[Evidence]:
    evidence = []
    masked = tested == "single uploads"
    bare_noise = not masked and context.plan.traits.adds_noise
    for number, method in enumerate(METHODS):
        context.on_progress(0.5 + 0.1 * number, "membership by the server: uploads")
        positive = [_upload_pair(scene, method, context, adaptive=True) for scene in plain]
        for adaptive in (False, True) if tested != 0 else (True,):
            read = "the round's sum, its secrets" if masked else "each upload, its secrets"
            if bare_noise:
                read += ", but not the noise terms that go up bare"
            target = [_upload_pair(scene, method, context, adaptive=adaptive) for scene in scenes]
            null = [p for s in scenes for p in _null_sources(s, method, context, len(scenes), adaptive=adaptive)]
            evidence.append(
                with_controls(
                    tested,
                    "curious server",
                    f"source of a sample by {method}" + (", from the sum" if masked and adaptive else ""),
                    read if adaptive else "the numbers of each upload as they come",
                    BOTH,
                    target=_condition(f"this client's batch of {scenes[0].batch_size} or another's", target),
                    positive=_condition(FEDAVG, positive),
                    negative=_condition(UNRELATED if adaptive else SHUFFLED, null),
                    # From a sum it cannot succeed, whatever the masks are worth: no claim may rest on that row.
                    adaptive=adaptive and not bare_noise and not masked,
                    paired=False,
                    remark="one sum gives one score a sample, whatever the client" if masked and adaptive else "",
                )
            )
    return evidence


def _uploads(scene: Scene, *, adaptive: bool) -> Tensor:
    read = [read_upload(scene.view, scene.round_index, name, adaptive=adaptive) for name in scene.clients]
    return torch.stack([scene.restricted(gradient) for gradient in read])


def _upload_pair(scene: Scene, method: Method, context: Context, *, adaptive: bool) -> Pair:
    uploads = _uploads(scene, adaptive=adaptive)
    return scene.source_pair(scene.bench.score(uploads, method, scene.batch_size, _draws(context, "shadow uploads")))


def _null_sources(scene: Scene, method: Method, context: Context, num_scenes: int, *, adaptive: bool) -> list[Pair]:
    count, clients = _share(num_scenes), len(scene.clients)
    draws = _draws(context, "unrelated", scene.number)
    if adaptive:
        uploads = scene.unrelated(count * clients, scene.batch_size, draws)
    else:
        uploads = _shuffled(_uploads(scene, adaptive=False).repeat(count, 1), draws)
    scores = scene.bench.score(uploads, method, scene.batch_size, _draws(context, "shadow uploads"))
    return [scene.source_pair(part) for part in scores.reshape(count, clients, -1)]


def _shuffled(rows: Tensor, randomness: Randomness) -> Tensor:
    """What is read as it comes is of another size than a gradient: chance must be, too."""
    return torch.stack([row[randomness.permutation(len(row))] for row in rows])


def _by_sum(context: Context, scenes: Sequence[Scene], plain: Sequence[Scene]) -> list[Evidence]:
    evidence = []
    methods: tuple[Method, ...] = ("decomposition",)  # likelihood ratios miss their gate at a sum's size
    for method in methods:
        context.on_progress(0.75, "membership by the server: the sum")
        positive = [_sum_pair(scene, method, context, adaptive=True) for scene in plain]
        for adaptive in (False, True):
            null = [p for s in scenes for p in _null_sums(s, method, context, len(scenes), adaptive=adaptive)]
            target = [_sum_pair(scene, method, context, adaptive=adaptive) for scene in scenes]
            evidence.append(
                with_controls(
                    12,
                    "curious server",
                    f"membership in the sum by {method}",
                    "the round's sum" + (", its secrets" if adaptive else " as it comes"),
                    BOTH,
                    target=_condition(f"in anyone's batch (together {_total(scenes[0])} samples) or in none", target),
                    positive=_condition(FEDAVG, positive),
                    negative=_condition(UNRELATED if adaptive else SHUFFLED, null),
                    adaptive=adaptive,
                    paired=False,
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


def _null_sums(scene: Scene, method: Method, context: Context, num_scenes: int, *, adaptive: bool) -> list[Pair]:
    count, draws = _share(num_scenes), _draws(context, "unrelated sums", scene.number)
    if adaptive:
        sums = scene.unrelated(count, _total(scene), draws)
    else:
        sums = _shuffled(
            scene.restricted(read_sum(scene.view, scene.round_index, adaptive=False)).repeat(count, 1), draws
        )
    return [scene.sum_pair(row) for row in _sum_scores(scene, method, context, sums)]


def _by_sizes(context: Context, scenes: Sequence[Scene], plain: Sequence[Scene]) -> Evidence:
    """A sample's weight in the sum is that of its client: sizes that differ give the source away."""

    def pairs(scene: Scene, sums: Tensor) -> list[Pair]:
        read = _sum_scores(scene, "decomposition", context, sums)
        return [scene.source_pair(-(row[None, :] - _weights(scene)[:, None]).abs()) for row in read]

    def target(scene: Scene) -> Pair:
        return pairs(scene, scene.restricted(read_sum(scene.view, scene.round_index, adaptive=True))[None])[0]

    def null(scene: Scene) -> list[Pair]:
        draws = _draws(context, "unrelated sums", scene.number)
        return pairs(scene, scene.unrelated(_share(len(scenes)), _total(scene), draws))

    return with_controls(
        12,
        "curious server",
        "source of a sample by its weight in the sum",
        "the round's sum, its secrets, and how many samples each client has",
        BOTH,
        target=_condition("this client's batch or another's", [target(scene) for scene in scenes]),
        positive=_condition(
            f"{FEDAVG}, each upload decomposed",
            [_upload_pair(scene, "decomposition", context, adaptive=True) for scene in plain],
        ),
        negative=_condition(UNRELATED, [p for scene in scenes for p in null(scene)]),
        paired=False,
        remark=f"clients have {', '.join(str(int(size)) for size in scenes[0].sizes)} samples",
    )


def _weights(scene: Scene) -> Tensor:
    """What one sample of each client's batch weighs in the sum."""
    return scene.sizes.double() / scene.sizes.sum() / scene.batch_sizes


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
    "membership-by-server",
    "Membership in a client's batch, by the curious server",
    (*ON_UPLOADS, 8, 10, 12),
    _applies,
    run,
    weight=30.0,
)
