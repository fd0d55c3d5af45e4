"""Intervals cover the truth as often as they say, and chance is called a difference no more often than the level."""

import math

import numpy as np
import pytest
from scipy import stats

from bilateral.audit.scores import (
    AUC,
    INPUT_ERROR,
    LABEL,
    PSNR,
    SSIM,
    Scores,
    mean_interval,
    p_value,
    rate_interval,
    smallest_p_value,
)

INFINITY = math.inf


def psnr(*values):
    return Scores(PSNR, tuple(float(value) for value in values))


def drawn(rng, middle, count, spread=1.0):
    return psnr(*(middle + spread * rng.standard_normal(count)))


def rejections(draw, repeats, level, *, paired):
    """How often the test calls what `draw` gives a difference."""
    return sum(p_value(*draw(), paired=paired) <= level for _ in range(repeats)) / repeats


class TestIntervals:
    @pytest.mark.parametrize("probability", [0.02, 0.3, 0.95])
    @pytest.mark.parametrize("trials", [10, 20, 100])
    def test_rate_intervals_cover_the_truth_at_least_as_often_as_they_say(self, probability, trials):
        """Exact: the chance of every count of hits, not a simulation."""
        covered = 0.0
        for hits in range(trials + 1):
            low, high = rate_interval((1.0,) * hits + (0.0,) * (trials - hits))
            if low <= probability <= high:
                covered += stats.binom.pmf(hits, trials, probability)
        assert covered >= 0.95

    @pytest.mark.parametrize("trials", [3, 5, 20])
    def test_mean_intervals_cover_the_truth_as_often_as_they_say(self, trials):
        rng = np.random.default_rng(0)
        intervals = [mean_interval(tuple(7.0 + 2.0 * rng.standard_normal(trials))) for _ in range(1000)]
        covered = np.mean([low <= 7.0 <= high for low, high in intervals])
        assert covered == pytest.approx(0.95, abs=0.02)

    def test_mean_intervals_are_students(self):
        values = (1.0, 2.0, 4.0, 9.0)
        expected = stats.t.interval(0.95, 3, loc=4.0, scale=np.std(values, ddof=1) / 2)
        assert mean_interval(values) == pytest.approx(expected)

    def test_of_one_value_nothing_is_known(self):
        assert mean_interval((3.0,)) == (-INFINITY, INFINITY)

    def test_no_hit_and_no_miss_leave_doubt(self):
        assert rate_interval((0.0,) * 20) == (0.0, pytest.approx(0.168, abs=1e-3))
        assert rate_interval((1.0,) * 20) == (pytest.approx(0.832, abs=1e-3), 1.0)

    def test_a_metric_says_which_interval_it_has(self):
        ones = (1.0, 0.0, 1.0, 1.0)
        assert Scores(LABEL, ones).interval == rate_interval(ones)
        assert Scores(PSNR, ones).interval == mean_interval(ones)

    def test_a_given_interval_wins(self):
        assert Scores(AUC, (0.5, 0.6), (0.1, 0.2)).interval == (0.1, 0.2)


class TestPermutation:
    """Under the null the test rejects at most as often as its level says, give or take the simulation's own error."""

    def test_paired_is_calibrated(self):
        rng = np.random.default_rng(1)
        found = rejections(lambda: (drawn(rng, 9, 8), drawn(rng, 9, 8)), 400, 0.05, paired=True)
        assert found <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)

    def test_unpaired_is_calibrated_with_unequal_numbers(self):
        rng = np.random.default_rng(2)
        found = rejections(lambda: (drawn(rng, 9, 4), drawn(rng, 9, 7)), 400, 0.05, paired=False)
        assert found <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)

    def test_ties_do_not_make_it_reject_more(self):
        rng = np.random.default_rng(3)

        def labels():
            return Scores(LABEL, tuple(float(hit) for hit in rng.random(8) < 0.3))

        assert rejections(lambda: (labels(), labels()), 400, 0.05, paired=True) <= 0.05

    def test_it_is_not_empty_of_power_at_the_level(self):
        """Calibration alone is easy: a test that never rejects has it."""
        rng = np.random.default_rng(4)
        found = rejections(lambda: (drawn(rng, 9, 8), drawn(rng, 9, 8)), 400, 0.2, paired=True)
        assert found >= 0.2 - 3 * math.sqrt(0.2 * 0.8 / 400)

    @pytest.mark.parametrize("paired", [True, False])
    def test_a_large_difference_is_found_every_time(self, paired):
        rng = np.random.default_rng(5)
        draws = [(drawn(rng, 12, 20), drawn(rng, 9, 20)) for _ in range(5)]
        assert all(p_value(*draw, paired=paired) <= 0.002 / 3 for draw in draws)

    def test_five_against_ten_is_just_enough_for_three_metrics(self):
        rng = np.random.default_rng(6)
        target, chance = drawn(rng, 0.9, 5, 0.01), drawn(rng, 0.5, 10, 0.01)
        assert 3 * p_value(target, chance, paired=False) <= 0.002

    def test_the_exact_value_of_a_case_that_can_be_counted(self):
        """Three differences of one sign: one of the eight flips is as large. Two against two: one of six."""
        assert p_value(psnr(2, 3, 4), psnr(1, 1, 1), paired=True) == pytest.approx(1 / 8)
        assert p_value(psnr(5, 6), psnr(1, 2), paired=False) == pytest.approx(1 / 6)

    def test_the_wrong_direction_is_never_a_success(self):
        assert p_value(psnr(*range(10)), psnr(*range(20, 30)), paired=True) == 1.0

    def test_where_low_is_good_low_is_a_success(self):
        good, bad = Scores(INPUT_ERROR, (0.1,) * 12), Scores(INPUT_ERROR, (1.0,) * 12)
        assert p_value(good, bad, paired=True) < 0.001
        assert p_value(bad, good, paired=True) == 1.0

    def test_equal_scores_are_no_difference(self):
        assert p_value(psnr(1, 2, 3), psnr(1, 2, 3), paired=True) == 1.0
        assert p_value(psnr(*[4] * 6), psnr(*[4] * 6), paired=False) == 1.0

    @pytest.mark.parametrize("paired", [True, False])
    @pytest.mark.parametrize("trials", [2, 5])
    def test_the_smallest_value_is_the_one_that_a_clean_sweep_gets(self, trials, paired):
        target, chance = psnr(*range(100, 100 + trials)), psnr(*range(trials))
        assert p_value(target, chance, paired=paired) == pytest.approx(smallest_p_value(target, chance, paired=paired))

    @pytest.mark.parametrize("paired", [True, False])
    def test_the_smallest_value_knows_that_many_trials_are_sampled(self, paired):
        target, chance = psnr(*range(100, 120)), psnr(*range(20))
        assert p_value(target, chance, paired=paired) == pytest.approx(smallest_p_value(target, chance, paired=paired))

    def test_the_same_scores_get_the_same_value(self):
        rng = np.random.default_rng(7)
        target, chance = drawn(rng, 9.3, 30), drawn(rng, 9, 30)
        assert p_value(target, chance, paired=True) == p_value(target, chance, paired=True)


class TestInfinities:
    """The PSNR of a perfect reconstruction, the error of one that diverged: they count as best or worst, no more."""

    CHANCE = tuple(10 + 0.1 * number for number in range(20))

    @pytest.mark.parametrize("paired", [True, False])
    def test_one_infinite_score_among_chance_is_no_difference(self, paired):
        assert p_value(psnr(INFINITY, *self.CHANCE[1:]), psnr(*self.CHANCE), paired=paired) > 0.05

    @pytest.mark.parametrize("paired", [True, False])
    def test_all_infinite_is_a_difference(self, paired):
        assert p_value(psnr(*[INFINITY] * 20), psnr(*self.CHANCE), paired=paired) <= 0.001

    @pytest.mark.parametrize("paired", [True, False])
    def test_one_infinite_score_of_the_control_does_not_hide_success(self, paired):
        better = psnr(*(value + 30 for value in self.CHANCE))
        assert p_value(better, psnr(INFINITY, *self.CHANCE[1:]), paired=paired) <= 0.001

    def test_infinite_on_both_sides_is_no_difference(self):
        assert p_value(psnr(*[INFINITY] * 12), psnr(*[INFINITY] * 12), paired=True) == 1.0

    def test_an_error_that_diverged_under_chance_is_no_success_of_the_target(self):
        target, chance = Scores(INPUT_ERROR, (1.0,) * 20), Scores(INPUT_ERROR, (INFINITY, *[1.0] * 19))
        assert p_value(target, chance, paired=False) > 0.05


class TestBadInput:
    def test_no_scores_are_refused(self):
        with pytest.raises(ValueError, match="no scores"):
            Scores(PSNR, ())

    def test_what_is_not_a_number_is_refused(self):
        with pytest.raises(ValueError, match="not a number"):
            psnr(1, math.nan)

    def test_a_rate_of_anything_but_zeros_and_ones_is_refused(self):
        with pytest.raises(ValueError, match="zeros and ones"):
            _ = Scores(LABEL, (0.0, 0.5)).interval

    def test_different_metrics_are_not_compared(self):
        with pytest.raises(ValueError, match="cannot be compared"):
            p_value(psnr(1, 2), Scores(SSIM, (1.0, 2.0)), paired=True)

    def test_unequal_numbers_are_not_paired(self):
        with pytest.raises(ValueError, match="cannot be paired"):
            p_value(psnr(1, 2), psnr(1, 2, 3), paired=True)
