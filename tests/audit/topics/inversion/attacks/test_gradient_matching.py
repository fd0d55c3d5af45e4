"""Gradient inversion by matching: against a plain loop, where it must work, and where it must not."""

from __future__ import annotations

import pytest
import torch
from tests.audit.topics.inversion.attacks.inversion_bed import Bed, mlp, rectified, smooth

from bilateral.audit.image_metrics import ValueRange, psnr
from bilateral.audit.topics.inversion.attacks.batched_lbfgs import minimise
from bilateral.audit.topics.inversion.attacks.deep_leakage import deep_leakage
from bilateral.audit.topics.inversion.attacks.gradient_matching import (
    Heat,
    MatchingSettings,
    Problems,
    best_start,
    leading,
    match_gradients,
    noise_starts,
    public_starts,
    total_variation,
)
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
UNIT = ValueRange(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))


def problems_of(bed: Bed, gradients: torch.Tensor | None = None) -> Problems:
    given = bed.gradients if gradients is None else gradients
    return Problems(bed.repeated_parameters(len(given)), given, bed.targets[:, None])


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize(("network", "shape"), [(mlp, (6,)), (smooth, (1, 8, 8)), (rectified, (1, 8, 8))])
def test_vectorised_gradients_are_those_of_a_plain_loop(network, shape, loss):
    bed = Bed(network(), shape, loss)
    found = bed.model.gradients(bed.repeated_parameters(3), bed.samples[:, None], bed.targets[:, None])
    torch.testing.assert_close(found, bed.gradients, rtol=1e-4, atol=1e-6)
    together = bed.model.gradients(bed.parameters[None], bed.samples[None], bed.targets[None])[0]
    torch.testing.assert_close(together, bed.gradient(slice(None)), rtol=1e-4, atol=1e-6)


def test_matching_finds_the_images_behind_gradients_and_not_those_behind_random_ones():
    bed = Bed(rectified(), (1, 8, 8))
    settings = MatchingSettings((Heat(2, 200),), step_size=0.05, total_variation=0.0)
    scores = {}
    for name, gradients in (("true", bed.gradients), ("random", torch.randn_like(bed.gradients))):
        problems = problems_of(bed, gradients)
        starts = noise_starts(problems, (1, 8, 8), 2, SeededRandomness(0)).abs()
        found = match_gradients(bed.model, problems, starts, UNIT, settings)
        scores[name] = [psnr(guess[0], truth) for guess, truth in zip(found.samples, bed.samples, strict=True)]
    assert min(scores["true"]) > 20
    assert max(scores["random"]) < 15


def test_deep_leakage_finds_images_on_a_smooth_network_and_not_from_random_gradients():
    bed = Bed(smooth(), (1, 8, 8))
    starts = noise_starts(problems_of(bed), (1, 8, 8), 1, SeededRandomness(0))
    labels = SeededRandomness(1).normal(3, 1, 1, 4)
    for label_starts in (None, labels):
        found = deep_leakage(bed.model, problems_of(bed), starts, UNIT, 60, label_starts=label_starts)
        scores = [psnr(guess[0], truth) for guess, truth in zip(found.samples, bed.samples, strict=True)]
        assert sorted(scores)[1] > 30
    noise = problems_of(bed, torch.randn_like(bed.gradients))
    lost = deep_leakage(bed.model, noise, starts, UNIT, 60)
    assert max(psnr(guess[0], truth) for guess, truth in zip(lost.samples, bed.samples, strict=True)) < 15


def test_a_start_that_is_nearly_grey_is_further_after_as_many_steps_on_a_picture():
    """Pictures are smooth, and the fine detail of a start is what L-BFGS gets rid of last."""
    bed = Bed(smooth(16), (1, 16, 16))
    ramp = torch.linspace(0.0, 1.0, 16)
    bed.samples = torch.stack([ramp.expand(16, 16), ramp.flip(0).expand(16, 16).T, ramp[:, None] * ramp])[:, None]
    problems = problems_of(bed, torch.stack([bed.gradient(slice(i, i + 1)) for i in range(3)]))
    means = {}
    for spread in (1.0, 0.1):
        starts = noise_starts(problems, (1, 16, 16), 1, SeededRandomness(0), spread)
        found = deep_leakage(bed.model, problems, starts, UNIT, 30)
        means[spread] = sum(psnr(g[0], t) for g, t in zip(found.samples, bed.samples, strict=True)) / 3
    assert means[0.1] > means[1.0] + 5


def test_a_problem_in_a_batch_takes_the_path_that_it_takes_alone():
    scales = torch.tensor([1.0, 50.0, 2000.0], dtype=torch.float64)

    def valley(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return (1 - rows[:, 0]) ** 2 + factors * (rows[:, 1] - rows[:, 0] ** 2) ** 2

    start = torch.full((3, 2), -1.0, dtype=torch.float64)
    together, values = minimise(lambda rows: valley(rows, scales), start, 80)
    alone = [minimise(lambda rows, i=i: valley(rows, scales[i : i + 1]), start[i : i + 1], 80)[0] for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-12)
    assert values[:2].max() < 1e-12


def test_the_start_with_the_least_matching_loss_wins():
    samples = torch.arange(6.0).view(6, 1, 1)
    found = best_start(samples, torch.tensor([3.0, 1.0, 2.0, float("nan"), 5.0, 4.0]), 3)
    assert found.samples.flatten().tolist() == [1.0, 5.0]
    assert found.matching_loss.tolist() == [1.0, 4.0]


def test_those_with_the_least_loss_go_on_to_the_next_heat():
    samples = torch.arange(8.0).view(2, 4, 1)
    lost = torch.tensor([[3.0, 1.0, float("nan"), 2.0], [0.0, 5.0, 4.0, 6.0]])
    assert [sorted(row) for row in leading(samples, lost, 2)[..., 0].tolist()] == [[1.0, 3.0], [4.0, 6.0]]


def test_a_race_ends_with_the_start_that_matched_best_in_its_first_heat():
    """One of the starts is the image itself; the others would still be far away after so few steps."""
    bed = Bed(rectified(), (1, 8, 8))
    problems = problems_of(bed)
    starts = noise_starts(problems, (1, 8, 8), 4, SeededRandomness(0)).abs()
    starts[:, 2, 0] = bed.samples
    seen: list[float] = []
    settings = MatchingSettings((Heat(4, 1), Heat(1, 11)), step_size=1e-3, total_variation=0.0)
    found = match_gradients(bed.model, problems, starts, UNIT, settings, seen.append)
    assert min(psnr(guess[0], truth) for guess, truth in zip(found.samples, bed.samples, strict=True)) > 40
    assert seen == sorted(seen)
    assert 4 / 15 in seen  # where the second heat begins: a step of four starts is four of fifteen


def test_samples_of_one_label_behind_one_gradient_never_begin_alike():
    """Equal guesses have equal gradients, and would stay equal for ever."""
    bed = Bed(rectified(), (1, 8, 8))
    public, labels = torch.rand(24, 1, 8, 8), torch.arange(24) % 4
    targets = torch.nn.functional.one_hot(torch.tensor([1, 1, 1, 1, 2]), 4).float()[None]
    problems = Problems(bed.parameters[None], bed.gradients[:1], targets)
    starts = public_starts(bed.model, problems, public, labels, 3, SeededRandomness(0))
    for start in starts[0]:
        assert len(start.flatten(1).unique(dim=0)) == 5


def test_public_starts_are_of_the_label_and_the_true_image_comes_first_among_them():
    bed = Bed(rectified(), (1, 8, 8))
    public = torch.cat([torch.rand(20, 1, 8, 8), bed.samples])
    labels = torch.cat([torch.arange(20) % 4, bed.labels])
    starts = public_starts(bed.model, problems_of(bed), public, labels, 2, SeededRandomness(0))
    assert starts.shape == (3, 2, 1, 1, 8, 8)
    torch.testing.assert_close(starts[:, 0, 0], bed.samples)


def test_total_variation_is_zero_for_flat_images_and_for_tables():
    assert float(total_variation(torch.full((1, 1, 1, 4, 4), 0.3))) == 0
    assert float(total_variation(torch.rand(1, 1, 5))) == 0
    stripes = torch.tensor([0.0, 1.0]).repeat(2).expand(1, 1, 1, 4, 4)
    assert float(total_variation(stripes)) == 1.0
