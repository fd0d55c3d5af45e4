"""A protection from outside of the package: one class and one call, and it is planned, run, compared and audited."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch

from bilateral.audit.auditor import audit
from bilateral.engine.plan import RunPlan, dump_plan, load_plan, parse_plan
from bilateral.errors import PlanError, UnsoundPlanError
from bilateral.protections import registry
from bilateral.protections.base import ModelProtection, Vocabulary
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protections.registry import (
    baseline_names,
    mechanism_names,
    protection_names,
    register,
    spoken,
    unregister,
)
from bilateral.protections.sections import Section
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import RecoveredUpdate
from bilateral.runs.rounds.compare import compare
from bilateral.runs.rounds.in_process import run


class Scaling(Section):
    factor: float = 4.0


class ScalingServer(FedAvgServer):
    def __init__(self, model, graph, factor):
        super().__init__(model, graph)
        self._factor = factor

    def recover(self, total):
        found = super().recover(total)
        return RecoveredUpdate(found.gradient / self._factor, found.statistics)


class ScalingClient(FedAvgClient):
    def __init__(self, factor, *given, **options):
        super().__init__(*given, **options)
        self._factor = factor

    def train(self, message, inputs, targets, weight):
        upload = super().train(message, inputs, targets, weight)
        return replace(upload, terms=self._factor * upload.terms)


class Toy(ModelProtection):
    """Uploads are multiplied by a public number, which hides nothing from anybody."""

    name = "toy"
    settings = Scaling
    vocabulary = Vocabulary("Toy")

    def guarantee(self, around):
        leaks = (Leak("the whole model", "clients", 0), Leak("each client's gradient", "server", 0))
        return Guarantee("Toy", (), leaks)

    def make_server(self, around, model):
        return ScalingServer(model, around.graph, around.plan.own_settings(self.name).factor)

    def make_client(self, basis):
        factor = basis.plan.own_settings(self.name).factor
        return ScalingClient(
            factor, basis.name, basis.model, basis.graph, basis.loss, channels_last=basis.plan.training.channels_last
        )

    def warnings(self, plan):
        yield "Multiplying hides nothing (line 0)."


@pytest.fixture
def toy():
    register(Toy())
    yield
    unregister("toy")


SMALL = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "model.options": {"width": 8},
    "federation.clients": 3,
    "training.rounds": 3,
    "training.batch_size": 16,
}


def plan(**settings):
    return RunPlan(protection="toy").with_settings({**SMALL, **settings})


def weights(result):
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


def test_a_plan_names_it_and_has_a_section_of_its_settings(toy, tmp_path):
    chosen = plan(**{"toy.factor": 2.0})
    (tmp_path / "plan.toml").write_text(dump_plan(chosen), encoding="utf-8")
    read = load_plan(tmp_path / "plan.toml")
    assert read == chosen
    assert read.own_settings("toy") == Scaling(factor=2.0)
    assert read.fingerprint() == chosen.fingerprint() != plan(**{"toy.factor": 8.0}).fingerprint()
    assert plan().own_settings("toy") == Scaling()


def test_its_settings_are_checked_like_a_plans_own(toy):
    with pytest.raises(PlanError, match=r"`toy\.factor`: Input should be a valid number.*got 'x'"):
        plan(**{"toy.factor": "x"})
    with pytest.raises(PlanError, match=r"`toy\.size` is not a setting"):
        plan(**{"toy.size": 3})


def test_plans_without_it_are_as_they_were(toy):
    chosen = RunPlan()
    stored, prints = dump_plan(chosen), chosen.fingerprint()
    unregister("toy")
    assert (dump_plan(RunPlan()), RunPlan().fingerprint()) == (stored, prints)
    register(Toy())


def test_a_name_that_is_not_registered_is_no_protection():
    with pytest.raises(PlanError, match=r"Input should be 'perturbation', 'fedavg', 'masks', 'sealed', .*, got 'toy'"):
        parse_plan({"protection": "toy"}, "here")
    with pytest.raises(PlanError, match="`toy` is not a setting"):
        parse_plan({"toy": {"factor": 2.0}}, "here")


def test_names_that_are_taken_are_refused(toy):
    for name in ("toy", "fedavg", "fedsgd", "sound", "none"):
        taken = type("Taken", (Toy,), {"name": name})
        with pytest.raises(PlanError, match=f"a protection called '{name}' already"):
            register(taken())


def test_a_run_with_it_ends_with_the_model_of_fedsgd_bit_for_bit(toy):
    mine = run(plan(), save=False)
    assert mine.difference_to_fedavg == 0.0
    assert torch.equal(weights(mine), weights(run(plan(protection="fedsgd"), save=False)))


def test_masks_go_on_top_of_it(toy):
    masked = run(plan(**{"aggregation.masks": "ring"}), save=False)
    assert masked.guarantee.protection == "Toy + ring masks"
    assert masked.difference_to_fedavg < 1e-6


def test_noise_whose_claim_it_cannot_carry_is_refused(toy):
    budget = {"noise.epsilon": 8.0, "training.loss": "mse"}
    with pytest.raises(UnsoundPlanError, match="sound noise over uploads that are not clipped"):
        run(plan(**{**budget, "noise.mechanism": "sound"}), save=False)
    for name in mechanism_names()[2:]:
        with pytest.raises(UnsoundPlanError, match="published noise without perturbation"):
            run(plan(**{**budget, "noise.mechanism": name}), save=False)


def test_compare_knows_it_by_its_name(toy):
    rows = compare(plan(), ["toy"], num_controls=0)
    assert [(row["protection"], row["weights_relative_difference"]) for row in rows] == [("fedavg", 0.0), ("toy", 0.0)]


def test_it_is_spoken_of_and_warned_about_in_its_own_words(toy):
    from bilateral.engine.flare.deployment import warnings_of

    assert spoken("toy + ring masks") == "Toy + ring masks"
    assert "Multiplying hides nothing (line 0)." in warnings_of(plan(), ("a", "b", "c"))


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_audit_attacks_it_as_what_it_is_in_processes_too(toy, num_workers):
    attacks = ("function-recovery", "gradient-inversion")
    result = audit(plan(), effort="smoke", only=attacks, save=False, num_workers=num_workers)
    assert not result.failed
    assert result.protection == "Toy"
    assert {one.tests for one in result.evidence} == {0}
    assert {verdict.verdict for verdict in result.verdicts} == {"broken"}


def test_one_that_cannot_be_handed_to_processes_is_refused_before_they_start(toy):
    class Local(Toy):
        name = "local"

    register(Local())
    try:
        with pytest.raises(PlanError, match="cannot be handed to the processes"):
            audit(plan(protection="local"), only=("function-recovery", "gradient-inversion"), save=False, num_workers=2)
    finally:
        unregister("local")


def test_an_installed_package_registers_one_by_an_entry_point(monkeypatch):
    found = EntryPoint("toy", f"{__name__}:Toy", registry.GROUP)
    broken = EntryPoint("broken", "no_such_module:Protection", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken, found])
    registry._load_installed.cache_clear()
    try:
        with pytest.warns(UserWarning, match="'broken' .*was left out"):
            assert protection_names() == ("perturbation", "fedavg", "masks", "sealed", *baseline_names(), "toy")
        assert RunPlan(protection="toy").chosen.model.name == "toy"
    finally:
        unregister("toy")
