"""Gradient inversion end to end, with the judge: broken where uploads are bare, at chance where they are masked."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bilateral.audit.effort import EFFORTS
from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import Context, undefended
from bilateral.audit.threat import server_view
from bilateral.audit.topics.inversion import sum_inversion
from bilateral.audit.topics.inversion.attacks.labels import read_label
from bilateral.audit.topics.inversion.attacks.uploads import best_explained, own_gradient, sum_gradient, true_model
from bilateral.audit.topics.inversion.gradient_inversion import DEEP_LEAKAGE, GRADIENT_INVERSION
from bilateral.audit.topics.inversion.inversion_evidence import Inversion
from bilateral.audit.topics.inversion.inversion_methods import MATCHING
from bilateral.audit.topics.inversion.one_sample_rounds import colluding, one_sample_plan, record_rounds
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
MLP = {"model.name": "mlp-3", "training.loss": "mse"}


def context(**settings: object) -> Context:
    plan = RunPlan().with_settings({name.replace("__", "."): value for name, value in settings.items()})
    return Context(plan, EFFORTS["smoke"])


def verdicts(found: list[Evidence], tests: str | int, attack: str = "") -> dict[tuple[str, bool], str]:
    rows = [one for one in found if one.tests == tests and attack in one.attack]
    return {(one.adversary, one.adaptive): judge(one).verdict for one in rows}


@pytest.fixture(scope="module")
def masked_by_seed() -> list[list[Evidence]]:
    contexts = [Context(RunPlan().with_settings({**MLP, "seed": seed}), EFFORTS["smoke"]) for seed in range(4)]
    return [list(GRADIENT_INVERSION.run(context)) for context in contexts]


@pytest.fixture(scope="module")
def masked(masked_by_seed) -> list[Evidence]:
    return masked_by_seed[0]


def test_ring_masks_do_not_break_by_naive_adaptive_and_colluding_attackers(masked_by_seed):
    for found in masked_by_seed:
        assert set(verdicts(found, "single uploads", "first layer")) == {
            ("curious server", False),
            ("eavesdropper", False),
            ("curious server", True),
            ("server with colluding clients", True),
        }
        assert "broken" not in verdicts(found, "single uploads").values()


@pytest.mark.parametrize("adversary", ["curious server", "server with colluding clients"])
def test_what_a_sum_shows_is_dealt_out_to_its_owner_no_more_often_than_to_another(masked_by_seed, adversary):
    """A hit by chance is to be expected: candidates are true samples. So the hits of 48 trials are compared."""
    rows = [
        one
        for found in masked_by_seed
        for one in found
        if one.tests == "single uploads" and one.adversary == adversary and one.adaptive and "first layer" in one.attack
    ]
    assert len(rows) == 4
    own, others = (
        int(sum(sum(part.of(gate.metric).values) for part in parts))
        for gate in rows[0].gates[:1]
        for parts in ([one.target for one in rows], [one.negative for one in rows])
    )
    assert own + others == 0 or stats.binomtest(own, own + others, alternative="greater").pvalue > 1e-3


def test_line_12_the_sum_of_five_samples_shows_samples_all_the_same(masked):
    assert verdicts(masked, 12, "first layer") == {("curious server", True): "broken"}


def test_line_3_without_masks_the_server_inverts_every_upload():
    found = list(
        GRADIENT_INVERSION.run(Context(RunPlan().with_settings({**MLP, "aggregation.masks": "none"}), EFFORTS["smoke"]))
    )
    assert verdicts(found, 3, "first layer")["curious server", True] == "broken"
    assert verdicts(found, 3, "labels")["curious server", True] == "broken"


def test_line_0_fedavg_shows_tables_exactly():
    found = list(GRADIENT_INVERSION.run(context(protection="fedavg", data__name="breast-cancer", model__name="mlp-3")))
    row = next(one for one in found if one.adaptive and "first layer" in one.attack)
    assert judge(row).verdict == "broken"
    assert row.target.scores[0].median < 1e-3


@pytest.fixture(scope="module")
def deep() -> list[Evidence]:
    return list(DEEP_LEAKAGE.run(context(perturbation__softmax="blinded")))


def test_deep_leakage_works_on_fedavg_and_is_at_chance_under_masks(deep):
    naive = [one for one in deep if not one.adaptive]
    assert "broken" not in {judge(one).verdict for one in naive}
    for one in naive:
        assert all(gate.passed_by(one.positive.of(gate.metric)) for gate in one.gates)
        assert abs(one.target.scores[0].mean - one.negative.scores[0].mean) < 3
    assert verdicts(deep, "single uploads", "iDLG")["curious server", True] != "broken"
    assert deep[0].pictures[0].rows


def test_line_8_softmax_queries_say_whose_sample_a_sum_shows(deep):
    """Published cross entropy: what the sum shows of everybody is dealt out right, masks or not."""
    row = next(one for one in deep if one.tests == 8)
    assert row.target.scores[0].mean > row.negative.scores[0].mean + 2


def test_the_sum_at_the_plans_own_batch_size_is_scored_crosswise():
    (row,) = sum_inversion.EXPERIMENT.run(Context(RunPlan().with_settings(MLP), EFFORTS["smoke"]))
    assert row.tests == 12
    assert row.paired
    assert len(row.target.scores[0].values) == len(row.negative.scores[0].values) == 2 * 5 * 32
    assert all(gate.passed_by(row.positive.of(gate.metric)) for gate in row.gates)


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_colluders_take_exactly_their_part_out_of_the_sum(loss):
    given = context(model__name="mlp-3", training__loss=loss)
    rounds = record_rounds(given, one_sample_plan(given.plan, 5, 10))
    recording = rounds.recording
    partners = colluding(recording)
    assert partners == ("client-4", "client-5")
    view = server_view(recording, partners)
    gradient, honest = sum_gradient(view, 0)
    model, parameters = true_model(view.facts), view.server_round(0).parameters.float()
    weights = [len(recording.shares[name]) for name in honest]
    rows = []
    for name in honest:
        batch = recording.batches[name, 0]
        targets = batch.targets.float() if loss == "mse" else torch.nn.functional.one_hot(batch.targets, 10).float()
        rows.append(model.gradients(parameters[None], batch.inputs[None], targets[None])[0].double())
    expected = sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def rightly_dealt_out(**settings: object) -> tuple[int, int]:
    """Uploads of three honest clients, two others with the server, and the true samples to choose among: right, all."""
    given = context(model__name="mlp-3", **settings)
    recording = given.record(one_sample_plan(given.plan, 5, 100))
    honest = tuple(recording.shares)[:3]
    view = server_view(recording, tuple(recording.shares)[3:])
    model, right = true_model(view.facts), 0
    for index in range(recording.plan.training.rounds):
        parameters = view.server_round(index).parameters.float()
        samples = torch.stack([recording.batches[name, index].inputs[0].float() for name in honest])
        for place, name in enumerate(honest):
            gradient = own_gradient(view, index, name)
            label = read_label(model, parameters, gradient.float())
            right += torch.equal(best_explained(model, parameters, samples, gradient, label), samples[place])
    return right, len(honest) * recording.plan.training.rounds


def test_the_true_samples_themselves_are_dealt_out_at_chance_under_masks_and_rightly_without():
    """Far more trials than an audit has: what is suspicious with 12 of them is settled here."""
    masked = [rightly_dealt_out(seed=seed) for seed in range(4)]
    right, total = (sum(column) for column in zip(*masked, strict=True))
    assert total == 240
    assert abs(right - total / 3) < 3.3 * (total * 2 / 9) ** 0.5
    assert rightly_dealt_out(aggregation__masks="none") == (60, 60)


@pytest.mark.long
def test_matching_meets_its_gates_on_the_default_plans_own_network_where_one_long_run_did_not():
    """Seed 2: 8 of 20 images with 600 steps from one start."""
    given = Context(RunPlan().with_settings({"seed": 2}), EFFORTS["standard"])
    rounds = record_rounds(given, undefended(one_sample_plan(given.plan, 5, 20)))
    assert Inversion(given, MATCHING, rounds, rounds, 0).works
