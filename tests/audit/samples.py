"""Evidence and audits with known answers, for tests of the judge and of what people see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bilateral.audit.auditor import AuditResult, Skipped
from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, Picture
from bilateral.audit.scores import AUC, EPSILON_BOUND, PSNR, SOFTMAX_ERROR, SSIM, Metric, Scores
from bilateral.audit.verdict import judge_claims
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

AGREEMENT = Metric("agreement with the true model", "high", is_rate=True)
OTHERS = Claim("other clients' uploads", "other clients' single uploads", "clients", "no collusion with the server")
UPLOADS = Claim("single uploads", "every upload and its weight", "server", "keys are pinned")
SUMS = Claim("overlapping sums", "two sums with a client in common", "server", "clients compare notes")
FUNCTION = Leak("the function the model computes", "clients", 1)
SOFTMAX = Leak("every true softmax", "clients", 2)
SIZES = Leak("the size of a row that does not fit", "server", 11)
GUARANTEE = Guarantee("perturbation, ring masks", (OTHERS, UPLOADS, SUMS), (FUNCTION, SOFTMAX, SIZES))


def around(middle: float, *, trials: int = 20, spread: float = 0.5, seed: int = 0) -> tuple[float, ...]:
    """Scores of that mean, exactly; another seed draws other ones."""
    drawn = np.random.default_rng(seed).normal(0.0, spread, trials)
    return tuple(float(value) for value in middle + drawn - drawn.mean())


def rate(hits: int, trials: int = 20) -> tuple[float, ...]:
    return (1.0,) * hits + (0.0,) * (trials - hits)


def inversion(
    target: Sequence[float] = around(9.5, seed=1),
    positive: Sequence[float] | None = around(26.0, seed=2),
    negative: Sequence[float] | None = around(9.5, seed=3),
    **changes: object,
) -> Evidence:
    """Gradient inversion by the server; as it stands it finds nothing, and its controls are in order."""
    evidence = Evidence(
        tests="single uploads",
        adversary="curious server",
        attack="cosine inversion",
        adaptive=True,
        seen="uploads",
        target=Condition("this plan", (Scores(PSNR, tuple(target)),)),
        positive=None if positive is None else Condition("FedSGD", (Scores(PSNR, tuple(positive)),)),
        negative=None if negative is None else Condition("another image's gradient", (Scores(PSNR, tuple(negative)),)),
        gates=(Gate(PSNR, 20.0, "median"),),
        paired=True,
    )
    return replace(evidence, **changes)


BROKEN = inversion(target=around(25.0, seed=1))
"""A protection that does not protect."""
HOLDS = inversion()
BLIND_ATTACK = inversion(target=around(5.0, seed=1), positive=around(11.0, seed=2))
"""The target looks perfectly protected, but the attack does not even work on FedSGD."""


def fitted_secrets(**changes: object) -> Evidence:
    """Ledger line 1, carried out."""
    evidence = Evidence(
        tests=1,
        adversary="curious client",
        attack="least squares fit of the group secrets",
        adaptive=True,
        seen="the perturbed model",
        target=Condition("this plan", (Scores(AGREEMENT, rate(196, 200)),)),
        positive=Condition("FedSGD", (Scores(AGREEMENT, rate(200, 200)),)),
        negative=Condition("random secrets", (Scores(AGREEMENT, rate(22, 200)),)),
        gates=(Gate(AGREEMENT, 0.95),),
        curves=(
            Curve(
                "Agreement over labelled samples",
                "labelled samples",
                "agreement with the true model",
                {
                    "adaptive": ((1, 0.3, 0.2, 0.4), (10, 0.9, 0.8, 0.95), (100, 0.98, 0.95, 1.0)),
                    "naive": ((1, 0.1, 0.05, 0.2), (10, 0.1, 0.05, 0.2), (100, 0.1, 0.05, 0.2)),
                },
            ),
        ),
    )
    return replace(evidence, **changes)


def read_softmax(**changes: object) -> Evidence:
    """Ledger line 2, carried out to machine precision."""
    evidence = Evidence(
        tests=2,
        adversary="curious client",
        attack="linear system of the exchange",
        adaptive=True,
        seen="answers to its own queries",
        target=Condition("this plan", (Scores(SOFTMAX_ERROR, tuple(10.0 ** -np.linspace(8, 10, 20))),)),
        positive=Condition("blinders known", (Scores(SOFTMAX_ERROR, tuple(10.0 ** -np.linspace(12, 13, 20))),)),
        negative=Condition("answers of another round", (Scores(SOFTMAX_ERROR, around(0.6, spread=0.1)),)),
        gates=(Gate(SOFTMAX_ERROR, 1e-6, "median"),),
    )
    return replace(evidence, **changes)


def membership(**changes: object) -> Evidence:
    """LiRA by a client; naive, and at chance."""
    evidence = Evidence(
        tests=1,
        adversary="curious client",
        attack="LiRA on the perturbed outputs",
        adaptive=False,
        seen="the perturbed model",
        target=Condition("this plan", (Scores(AUC, around(0.51, trials=5, spread=0.02)),)),
        positive=Condition("FedSGD", (Scores(AUC, around(0.93, trials=5, spread=0.02)),)),
        negative=Condition("models without members", (Scores(AUC, around(0.5, trials=10, spread=0.02, seed=4)),)),
        gates=(Gate(AUC, 0.85),),
    )
    return replace(evidence, **changes)


def distinguisher(low: float = 0.4, bound: float = 3.0, **changes: object) -> Evidence:
    """A lower bound on epsilon against a claimed one."""

    def epsilon(what: str, value: float) -> Condition:
        return Condition(what, (Scores(EPSILON_BOUND, (value,), (value, float("inf"))),))

    evidence = Evidence(
        tests="differential privacy",
        adversary="curious server",
        attack="distinguishing game",
        adaptive=True,
        seen="the sum",
        target=epsilon("this plan", low),
        positive=epsilon("no noise", 6.0),
        negative=epsilon("equal neighbours", 0.0),
        gates=(Gate(EPSILON_BOUND, 4.0),),
        bound=bound,
    )
    return replace(evidence, **changes)


def with_ssim(evidence: Evidence, target: float, negative: float) -> Evidence:
    """The same evidence with a second metric."""
    assert evidence.positive is not None
    assert evidence.negative is not None

    def add(condition: Condition, middle: float, seed: int) -> Condition:
        scores = Scores(SSIM, around(middle, spread=0.05, trials=len(condition.scores[0].values), seed=seed))
        return Condition(condition.what, (*condition.scores, scores))

    return replace(
        evidence,
        target=add(evidence.target, target, 5),
        positive=add(evidence.positive, 0.9, 6),
        negative=add(evidence.negative, negative, 7),
    )


def picture(rows: int = 3, channels: int = 1, size: int = 8) -> Picture:
    """A gradient, the same with noise, and noise."""
    generator = torch.Generator().manual_seed(0)
    ramp = torch.linspace(0, 1, size).expand(channels, size, size)

    def noise() -> torch.Tensor:
        return torch.rand(channels, size, size, generator=generator)

    images = tuple((ramp, 0.8 * ramp + 0.2 * noise(), noise()) for _ in range(rows))
    return Picture(
        "Reconstructions from one upload", ("target", "from FedSGD\n26.0 dB", "from this plan\n9.5 dB"), images
    )


def audit_of(
    evidence: Sequence[Evidence],
    guarantee: Guarantee = GUARANTEE,
    skipped: Sequence[Skipped] = (),
    settings: dict[str, object] | None = None,
) -> AuditResult:
    """A finished audit of the default plan."""
    return AuditResult(
        plan=RunPlan().with_settings(settings or {}).model_dump(mode="json"),
        protection=guarantee.protection,
        guarantee=guarantee,
        effort="standard",
        evidence=tuple(evidence),
        verdicts=tuple(judge_claims(guarantee, evidence)),
        skipped=tuple(skipped),
        seconds=123.4,
    )
