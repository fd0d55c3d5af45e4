"""Accounting against closed forms, against a second accountant, and against the literature."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats
from tests.reference.work import num_calls

from bilateral.errors import PlanError, UnsoundPlanError
from bilateral.protocols.noise import accounting
from bilateral.protocols.noise.accounting import (
    EVERYBODY,
    OUTSIDERS,
    Exposure,
    guarantee,
    multiplier_for,
    noise_for,
    report,
    spent,
)
from bilateral.protocols.noise.adaptive import AdaptiveClip
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.sound import SoundNoiseSettings

DELTA = 1e-5


def analytic_epsilon(z, delta):
    """Balle and Wang (2018), Theorem 8: the exact curve of one Gaussian, solved for epsilon."""

    def gap(epsilon):
        first = stats.norm.cdf(0.5 / z - epsilon * z)
        second = math.exp(epsilon + stats.norm.logcdf(-0.5 / z - epsilon * z))
        return first - second - delta

    return optimize.brentq(gap, 0.0, 1e4, xtol=1e-10) if gap(0.0) > 0 else 0.0


def renyi_epsilon(z, rate, num_rounds, delta):
    """Mironov, Talwar and Zhang (2019), eq. 3.3 at whole orders, with Mironov's first conversion (2017)."""
    best = math.inf
    for order in range(2, 129):
        parts = [
            special.gammaln(order + 1)
            - special.gammaln(k + 1)
            - special.gammaln(order - k + 1)
            + k * math.log(rate)
            + (order - k) * math.log1p(-rate)
            + k * (k - 1) / (2 * z**2)
            for k in range(order + 1)
        ]
        divergence = special.logsumexp(parts) / (order - 1)
        best = min(best, num_rounds * divergence + math.log(1 / delta) / (order - 1))
    return best


@pytest.mark.parametrize("z", [0.3, 0.7, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_one_unsampled_round_is_the_analytic_gaussian_mechanism(z, delta):
    exact = analytic_epsilon(z, delta)
    got = spent(z, 1.0, 1, delta)
    assert exact - 1e-6 <= got.epsilon <= exact + 2e-3  # pessimistic, by no more than the grid of losses
    assert got.per_round_epsilon == got.epsilon


@pytest.mark.parametrize("num_rounds", [4, 100, 2500])
def test_unsampled_rounds_compose_like_one_with_noise_over_their_root(num_rounds):
    exact = analytic_epsilon(10.0 / math.sqrt(num_rounds), DELTA)
    got = spent(10.0, 1.0, num_rounds, DELTA).epsilon
    assert exact - 1e-6 <= got <= exact * (1 + 1e-3) + 2e-3


def test_sampling_rates_next_to_one_spend_what_no_sampling_does():
    whole, nearly = (spent(2.0, rate, 10, DELTA).epsilon for rate in (1.0, 1 - 1e-9))
    assert nearly == pytest.approx(whole, abs=2e-2)


def test_figures_of_the_dp_sgd_tutorial_on_mnist():
    """Noise 1.1, batches of 256 out of 60,000, 60 epochs: 3.0 in the first tutorials; later conversions give less."""
    setting = (1.1, 256 / 60000, 14062, DELTA)
    first = renyi_epsilon(*setting)
    assert first == pytest.approx(3.0, abs=0.05)
    rdp, pld = (spent(*setting, accountant=name).epsilon for name in ("rdp", "pld"))
    assert 2.5 < rdp < first
    assert 2.3 < pld < rdp


@settings(max_examples=6, deadline=None)
@given(st.floats(0.6, 5.0), st.floats(0.001, 0.3), st.integers(1, 500), st.sampled_from([1e-4, 1e-6]))
def test_renyi_accounting_never_claims_less_than_loss_distributions(z, rate, num_rounds, delta):
    rdp, pld = (spent(z, rate, num_rounds, delta, accountant=name).epsilon for name in ("rdp", "pld"))
    assert pld <= rdp + 2e-3
    assert rdp <= renyi_epsilon(z, rate, num_rounds, delta) + 1e-9


@settings(max_examples=3, deadline=None)
@given(st.floats(0.6, 4.0), st.floats(0.005, 0.2), st.integers(2, 300), st.sampled_from(["pld", "rdp"]))
def test_epsilon_grows_with_rounds_and_rate_and_falls_with_noise_and_delta(z, rate, num_rounds, name):
    base = spent(z, rate, num_rounds, DELTA, accountant=name).epsilon
    slack = 2e-3  # the grid of losses
    assert spent(1.2 * z, rate, num_rounds, DELTA, accountant=name).epsilon <= base + slack
    assert spent(z, 1.3 * rate, num_rounds, DELTA, accountant=name).epsilon >= base - slack
    assert spent(z, rate, 2 * num_rounds, DELTA, accountant=name).epsilon >= base - slack
    assert spent(z, rate, num_rounds, 10 * DELTA, accountant=name).epsilon <= base + slack
    assert spent(z, rate, num_rounds, DELTA, accountant=name).per_round_epsilon <= base + slack


@pytest.mark.parametrize(("epsilon", "rate", "num_rounds"), [(0.5, 0.1, 50), (3.0, 0.01, 300), (8.0, 1.0, 200)])
@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_calibrated_noise_spends_the_budget_and_no_more(epsilon, rate, num_rounds, name):
    z = noise_for(epsilon, DELTA, rate, num_rounds, accountant=name)
    got = spent(z, rate, num_rounds, DELTA, accountant=name).epsilon
    assert 0.99 * epsilon < got <= epsilon


def test_thousands_of_rounds_are_no_more_work_than_a_hundred():
    spent(0.8, 0.02, 99, DELTA)  # what is done once only; answers are kept, so no number of rounds is asked for twice
    few, many = (num_calls(lambda rounds=rounds: spent(0.8, 0.02, rounds, DELTA)) for rounds in (101, 10_101))
    assert many < 2 * few


def test_losses_are_rounded_up_however_coarse_their_grid_is(monkeypatch):
    fine = spent(1.0, 0.05, 200, DELTA).epsilon
    monkeypatch.setattr(accounting, "LOSS_STEP", 0.05)
    assert spent(1.0, 0.05, 200, DELTA).epsilon >= fine


def plan(unit="sample", z=1.0, **options):
    clip = ClipSettings(1.0, unit, 16.0 if unit == "sample" else 1.0)
    return SoundNoiseSettings(clip, z, 6, max_colluders=1, **options)


def test_client_sampling_amplifies_nothing_against_the_server():
    everyone = Exposure(100, 0.05, 20, 20)
    some = Exposure(100, 0.05, 20, 5)
    counted = Exposure(100, 0.05, 20, 5, max_participations=31)
    server = [report(plan(), exposure, 2, 100).rows[0] for exposure in (everyone, some, counted)]
    assert server[0].epsilon == server[1].epsilon
    assert server[2].epsilon < server[1].epsilon
    assert server[2].epsilon == pytest.approx(spent(1.0, 0.05, 31, 0.999 * DELTA).epsilon, rel=1e-3)
    assert server[0].observer == EVERYBODY


def test_outsiders_get_the_amplification_of_sampled_clients_under_replacement():
    rows = report(plan("client", z=4.0), Exposure(50, 1.0, 200, 10), 2, 100).rows
    server, amplified = rows
    assert amplified.observer == OUTSIDERS
    assert amplified.epsilon < server.epsilon
    assert "replace one client" in amplified.assumption
    # Written out: replacing moves a sum by twice the norm; the colluder's draw is known.
    event = dp.SampledWithoutReplacementDpEvent(199, 10, dp.GaussianDpEvent(2.0))
    written_out = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    assert amplified.epsilon == pytest.approx(written_out.compose(event, 50).get_epsilon(DELTA), rel=2e-2)


def test_replacing_a_client_costs_at_least_an_unsampled_gaussian_of_twice_the_sensitivity_when_all_take_part():
    """Population and sample of one size: the theorem must not claim more than the plain Gaussian with z / 2."""
    settings, exposure = plan("client", z=4.0), Exposure(1, 1.0, 11, 10)
    assert accounting._amplified_row(4.0, settings, exposure, "").epsilon >= analytic_epsilon(2.0, DELTA)
    # It says less than the row of everybody, so the report leaves it out.
    assert len(report(settings, exposure, 1, 10).rows) == 1


def test_the_solved_multiplier_meets_the_budget_of_a_whole_report():
    exposure = Exposure(60, 0.05, 10, 10)
    needed = multiplier_for(4.0, DELTA, exposure)
    settings = plan(z=needed * (1 + 1e-4))
    assert 3.9 < report(settings, exposure, 2, 100).rows[0].epsilon <= 4.0


def test_counts_of_adaptive_clipping_are_paid_for_inside_the_same_budget():
    exposure = Exposure(50, 0.1, 10, 10)
    without = report(plan(z=1.2), exposure, 2, 100).rows[0].epsilon
    adaptive = plan(z=1.2, adaptive=AdaptiveClip(count_noise=4.0))
    assert adaptive.terms_multiplier > 1.2
    assert report(adaptive, exposure, 2, 100).rows[0].epsilon == pytest.approx(without, rel=1e-3)


def test_rounding_to_the_grid_is_in_the_report():
    exposure = Exposure(10, 0.1, 10, 10)
    small, huge = (report(plan(), exposure, 3, size) for size in (10, 10**10))
    assert huge.effective_multiplier < small.effective_multiplier < 1.0
    assert huge.rows[0].epsilon > small.rows[0].epsilon


def test_missing_tails_are_refused_where_epsilon_is_absurd():
    with pytest.raises(UnsoundPlanError, match="tails"):
        report(plan(z=0.05), Exposure(1, 1.0, 10, 10), 1, 10)


def test_sampled_samples_do_not_amplify_whole_clients():
    with pytest.raises(UnsoundPlanError, match="whole clients"):
        report(plan("client"), Exposure(10, 0.1, 10, 10), 1, 10)


def test_guarantee_states_the_figures_and_their_assumptions():
    spending = report(plan(), Exposure(100, 0.05, 20, 5), 2, 100)
    stated = guarantee(plan(), spending)
    claim = stated.claims[0]
    assert claim.whom == EVERYBODY
    assert f"epsilon {spending.rows[0].epsilon:.3g} in total" in claim.what
    assert f"{spending.rows[0].epsilon_per_round:.3g} a round, at delta 1e-05" in claim.what
    assert "one sample" in claim.what
    assert "6 or more honest clients" in claim.assumption
    assert "besides the observer and those that collude with it (1 at most)" in claim.assumption
    assert [leak.ledger_line for leak in stated.leaks] == [12]  # who takes part is not covered


def test_the_unit_client_is_about_its_data_and_not_about_its_presence():
    spending = report(plan("client", z=6.0), Exposure(10, 1.0, 20, 20), 2, 100)
    stated = guarantee(plan("client", z=6.0), spending)
    assert "what one client's data are" in stated.claims[0].what
    assert "replace one client's uploads by zeros" in stated.claims[0].assumption


@pytest.mark.parametrize(
    "wrong", [(0.0, 0.1, 1, 1e-5), (1.0, 0.0, 1, 1e-5), (1.0, 1.1, 1, 1e-5), (1.0, 0.1, 0, 1e-5), (1.0, 0.1, 1, 1.0)]
)
def test_what_cannot_be_accounted_for_is_refused(wrong):
    with pytest.raises(PlanError, match="Expected"):
        spent(*wrong)


def test_impossible_budgets_and_exposures_are_refused():
    with pytest.raises(PlanError, match="target epsilon"):
        noise_for(0.0, DELTA, 0.1, 10)
    with pytest.raises(PlanError, match="No noise multiplier"):
        noise_for(1e-9, 1e-12, 1.0, 10**6)
    with pytest.raises(PlanError, match="clients a round"):
        Exposure(10, 0.1, 5, 6)
    with pytest.raises(PlanError, match="take part in 1 to 10"):
        Exposure(10, 0.1, 5, 5, max_participations=11)
