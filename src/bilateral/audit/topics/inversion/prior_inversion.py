"""Gradient inversion with a generative prior (GIAS, GIFD), as in P2's table 2: the attacker knows images.

A decoder is trained on the server's test images, which no client has; then gradients are matched by images that it can
make, and by what is near them (`attacks/prior_search`). Rows and controls are those of `gradient_inversion`, but for
one thing. A prior makes plausible images of nothing, and scores by that alone: so where uploads are bare, the negative
control is *the prior without the gradient*, in each metric by the best that it has: its mean image, an image drawn from
it, and the same search with the gradient's numbers shuffled. What the row shows is what the gradient adds.

What the prior adds to the gradient is in the curve: FedSGD's gradients under noise (normal numbers with a norm of so
many times the gradient's), by this attack, by matching without a prior, and by the prior alone. An attacker knows how
much noise there is, for plans are public.

Beside PSNR, SSIM and both errors of P2 there is a distance by a small network (`audit/perception`), which is not LPIPS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from torch import Tensor

from bilateral.audit.effort import PriorEffort
from bilateral.audit.evidence import Condition, Curve, Evidence, Gate
from bilateral.audit.experiment import ON_UPLOADS, Context, Experiment, has_line, subject_of_uploads
from bilateral.audit.image_metrics import Ruler
from bilateral.audit.perception import train_perception
from bilateral.audit.scores import PSNR, RECONSTRUCTED, SSIM, mean_interval
from bilateral.audit.threat import server_view
from bilateral.audit.topics.inversion.attacks.generative_prior import GenerativePrior, train_generative_prior
from bilateral.audit.topics.inversion.attacks.gradient_matching import Heat, Problems, public_starts
from bilateral.audit.topics.inversion.attacks.prior_search import SearchSettings, search_prior
from bilateral.audit.topics.inversion.gradient_inversion import applies_to_uploads, doubt_about_own, recorded
from bilateral.audit.topics.inversion.inversion_evidence import Inversion, own_gradients
from bilateral.audit.topics.inversion.inversion_methods import (
    MATCHING,
    InversionTools,
    Method,
    Observed,
    read_targets,
)
from bilateral.audit.topics.inversion.one_sample_rounds import ruler_of, tools_of
from bilateral.audit.victims import CONVNET

NAME: Final = "generative prior, latents and features (GIFD)"
GATES: Final = (Gate(RECONSTRUCTED, 0.6), Gate(SSIM, 0.85, "median"))
"""A prior without any gradient reaches an SSIM of 0.6 on digits, and 0.7 now and then."""
MOST_DRAWS: Final = 100
"""Images that the prior draws, of which the remark tells the one nearest to the truth."""
CURVE_IMAGES: Final = 8


def prior_method(prior: GenerativePrior, effort: PriorEffort, noise: float = 0.0) -> Method:
    """The attack with this prior. `noise`: what the attacker knows of the gradients' (`SearchSettings.noise`)."""
    heats = Heat(effort.starts, effort.first_steps), Heat(max(1, effort.starts // 4), effort.latent_steps)
    settings = SearchSettings(heats, effort.feature_steps, noise=noise)

    def invert(observed: Observed, tools: InversionTools) -> list[Tensor]:
        problems = Problems(observed.parameters, observed.gradients, read_targets(observed, tools))
        draws, inputs = tools.randomness.child("starts"), tools.public.inputs
        images = public_starts(observed.model, problems, inputs, tools.labels, effort.starts, draws)
        starts = prior.encoded(images.flatten(0, 2)).view(*images.shape[:3], -1)
        found = search_prior(observed.model, problems, prior, starts, tools.bounds, settings, tools.on_progress)
        return list(found.samples)

    return Method(NAME, invert)


@dataclass(eq=False)
class PriorInversion(Inversion):
    """The attack under all conditions; `prior` is its own."""

    prior: GenerativePrior = field(kw_only=True)

    def evidence(self) -> list[Evidence]:
        """By the server: naive, adaptive, and from the sum."""
        found = [self.naive()]
        found.append(self._bare() if self._is_bare else self._dealt_out(server_view(self.target.recording)))
        if has_line(self.target.recording.guarantee, 12) and not self._is_bare:
            found.append(self._sum())
        first, *rest = [replace(one, remark=self._with_prior_words(one.remark)) for one in found]
        return [replace(first, pictures=self._pictures(), curves=self._curves()), *rest]

    @property
    def _gates(self) -> tuple[Gate, ...]:
        return GATES

    @cached_property
    def _ruler(self) -> Ruler:
        tools = self._tools(self.target)
        perception = train_perception(tools.public, self.context.randomness("perception"))
        return replace(ruler_of(self.target.recording, tools), perception=perception)

    @cached_property
    def _draws(self) -> Tensor:
        return self.prior.draw_images(MOST_DRAWS, self.context.randomness("inversion", "prior alone"))

    def _bare_floor(self, observed: Observed) -> Condition:  # noqa: ARG002
        """The prior without the gradient, by the best that it has in each metric."""
        trials = self.target.trials
        mean = self._scored("mean", trials, [self._draws.mean(0)] * len(trials))
        drawn = self._scored("draw", trials, [self._draws[n % MOST_DRAWS] for n in range(len(trials))])
        return best_of("the prior without the gradient", (mean, drawn, self._naive_floor))

    def _with_prior_words(self, remark: str) -> str:
        trials, ruler = self.target.trials, self._ruler
        mean = self._scored("mean", trials, [self._draws.mean(0)] * len(trials)).of(PSNR)
        best = [ruler.score_best(self._draws, trial.sample)[PSNR] for trial in trials]
        assert mean is not None
        words = f"the prior alone: its mean image has {mean.mean:.1f} dB, the best of {MOST_DRAWS} images that it "
        words += f"draws, chosen by the truth, {sum(best) / len(best):.1f} dB"
        return f"{remark}; {words}" if remark else words

    def _curves(self) -> tuple[Curve, ...]:
        """What the prior adds where gradients are noisy, on FedSGD's."""
        trials = self.control.trials[:CURVE_IMAGES]
        observed = own_gradients(server_view(self.control.recording), replace(self.control, trials=trials))
        alone = [self._draws.mean(0)] * len(trials)
        lines: dict[str, list[tuple[float, float, float, float]]] = {}
        effort = self.context.effort.prior
        for noise in effort.noises:
            noisy = with_noise(observed, noise, self.context)
            tools = self._tools(self.control)
            methods = {
                "with the prior": prior_method(self.prior, effort, noise),
                "matching": MATCHING,
            }
            guesses = {name: [one[0] for one in method.invert(noisy, tools)] for name, method in methods.items()}
            for name, found in {**guesses, "the prior alone": alone}.items():
                values = self._scored(name, trials, found).of(PSNR)
                assert values is not None
                lines.setdefault(name, []).append((noise, values.mean, *mean_interval(values.values)))
        title = "FedSGD's gradients under noise: what a generative prior adds"
        points = {name: tuple(line) for name, line in lines.items()}
        curve = Curve(title, "norm of the noise, as a share of the gradient's", PSNR.name, points)
        return (curve,) if effort.noises else ()


def best_of(what: str, tried: Sequence[Condition]) -> Condition:
    """In every metric the scores of whoever of them is best in it, on average."""
    best = []
    for scores in tried[0].scores:
        all_of_it = [found for one in tried if (found := one.of(scores.metric)) is not None]
        sign = 1.0 if scores.metric.better == "high" else -1.0
        best.append(max(all_of_it, key=lambda one: sign * one.mean))
    return Condition(what, tuple(best))


def with_noise(observed: Observed, share: float, context: Context) -> Observed:
    """Normal numbers on every gradient, with `share` times its norm."""
    drawn = context.randomness("inversion", "noise").normal(*observed.gradients.shape).to(observed.gradients.dtype)
    sizes = observed.gradients.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
    return replace(observed, gradients=observed.gradients + share * sizes * drawn)


def _run(context: Context) -> list[Evidence]:
    """On the plan's own network, or on a stand-in where that is no test. Nothing for what are no images of classes."""
    problem = context.federation().problem
    if problem.task != "classification" or len(problem.input_shape) != 3:
        return []
    plan, remark, doubt = context.plan, "", doubt_about_own(context)
    if doubt:
        plan = plan.with_settings({"model.name": CONVNET, "model.options": {}})
        remark = f"on a stand-in, a ConvNet without pooling: the plan's own is no test, {doubt}"
    target, control = recorded(context, plan)
    effort, images = context.effort.prior, target.recording.test.inputs.float()
    prior = train_generative_prior(
        images,
        context.randomness("inversion", "prior"),
        steps=effort.training_steps,
        on_step=_telling(context, effort.training_steps),
    )
    tools = tools_of(context, target.recording, NAME)
    if not tools.has_labels:
        return []
    method = prior_method(prior, effort)
    inversion = PriorInversion(
        context,
        method,
        target,
        control,
        subject_of_uploads(context.guarantee()),
        remark,
        lambda fraction, note: context.on_progress(0.3 + 0.7 * fraction, note),
        prior=prior,
    )
    return inversion.evidence()


def _telling(context: Context, steps: int) -> Callable[[int], None]:
    def tell(step: int) -> None:
        if step % 20 == 0:
            context.on_progress(0.05 + 0.25 * step / steps, "training a prior on public images")

    return tell


EXPERIMENT = Experiment(
    "prior-inversion",
    "Gradient inversion with a generative prior, by the server",
    (*ON_UPLOADS, 12),
    applies_to_uploads,
    _run,
    45.0,
)
