"""Runs whose uploads are summed as ciphertexts: exact, resumed, with clients that die, and with a dealer of its own."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.protections.baselines.harness import digests, plan_of, weights
from tests.runs.rounds.harness import LocalSites, conduct, silent_at

from bilateral.engine.plan import dump_plan, load_plan
from bilateral.errors import PlanError, UnsoundPlanError
from bilateral.protections.registry import protection_named
from bilateral.runs.rounds.in_process import run

ENCRYPTED = ("ckks", "tp-smc", "hybrid-alpha", "pile")
DEALER_OPENS = ("hybrid-alpha",)
NOISY = ("tp-smc", "hybrid-alpha")


@pytest.mark.parametrize("name", ENCRYPTED)
def test_it_is_a_baseline_with_its_line_of_the_ledger(name):
    result = run(plan_of(name, **{"training.rounds": 1}), save=False)
    assert protection_named(name).baseline_of
    assert 19 in {leak.ledger_line for leak in result.guarantee.leaks}
    assert {claim.subject for claim in result.guarantee.claims} == (
        set() if name in DEALER_OPENS else {"single uploads"}
    )


@pytest.mark.parametrize("name", ["ckks", "pile"])
def test_sums_of_ciphertexts_train_the_model_of_fedsgd_up_to_the_grid(name):
    result = run(plan_of(name), save=False)
    assert result.difference_to_fedavg < 1e-6
    assert not result.incidents


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_all_that_divided_noise_changes(name):
    """Without noise and with a clip that clips nothing, equal weights are the only difference to FedSGD."""
    own = {f"{name}.epsilon": None, f"{name}.clip": 1e6, f"{name}.bound_bits": 6}
    bare = run(plan_of(name, **{**own, "federation.clients": 2, "training.rounds": 1}), save=False)
    noisy = run(plan_of(name, **{f"{name}.epsilon": 1.0, f"{name}.bound_bits": 6}), save=False)
    assert bare.difference_to_fedavg < 1e-3
    assert noisy.difference_to_fedavg > 1e-2


@pytest.mark.parametrize("name", ENCRYPTED)
def test_a_resumed_run_is_the_same_bit_for_bit_under_new_keys(name, tmp_path):
    plan = plan_of(name, **{"training.checkpoint_every": 1})
    whole = run(plan, output=tmp_path / "whole", reference=False)
    rounds = []
    run(plan, output=tmp_path / "cut", on_round=rounds.append, should_stop=lambda: len(rounds) >= 1, reference=False)
    resumed = run(plan, output=tmp_path / "cut", resume=True, reference=False)
    assert torch.equal(weights(resumed), weights(whole))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


@pytest.mark.parametrize("name", ENCRYPTED)
def test_a_party_without_data_may_deal_and_changes_nothing(name, tmp_path):
    for dealer in ("rotating", "auditor"):
        plan = plan_of(name, **{"federation.dealer": dealer, "training.rounds": 2})
        result = run(plan, output=tmp_path / dealer, reference=False)
        assert not result.incidents
    assert digests(tmp_path / "rotating") == digests(tmp_path / "auditor")


@pytest.mark.parametrize("name", ENCRYPTED)
def test_clients_that_die_do_not_end_a_run(name):
    plan = plan_of(name, **{"federation.clients": 5, "federation.dropout": 0.25, "training.rounds": 5})
    result = run(plan, save=False, reference=False)
    assert result.rounds == 5
    assert len(result.failed) < 5
    assert all("NaN" not in failed.reason for failed in result.failed)


@pytest.mark.parametrize(("name", "dealer"), [("tp-smc", "rotating"), ("hybrid-alpha", "auditor"), ("pile", "auditor")])
def test_sites_behind_the_wire_have_the_same_sums_as_one_process(name, dealer, tmp_path):
    plan = plan_of(name, **{"federation.dealer": dealer, "training.rounds": 2})
    run(plan, output=tmp_path / "here", reference=False)
    result = conduct(plan, tmp_path / "there")
    assert result.finished
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def test_a_site_that_is_silent_when_a_sum_is_opened_is_replaced_by_another(tmp_path):
    """Its upload is in the sum: two others open it."""
    plan = plan_of("tp-smc", **{"federation.clients": 4, "training.rounds": 2})
    run(plan, output=tmp_path / "here", reference=False)
    sites = LocalSites(plan, silent_at("client-1", "opening the sum", (1,)))
    result = conduct(plan, tmp_path / "there", sites)
    assert result.finished
    assert not result.failed
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


@pytest.mark.parametrize("name", ENCRYPTED)
def test_a_single_client_is_refused(name):
    with pytest.raises(UnsoundPlanError, match="encrypted sums of a single client"):
        run(plan_of(name, **{"federation.clients": 1}), save=False)


@pytest.mark.parametrize("name", ENCRYPTED)
def test_masks_on_top_and_noise_on_top_are_refused(name):
    with pytest.raises(UnsoundPlanError, match="masks over uploads that are summed in another way"):
        run(plan_of(name, **{"aggregation.masks": "ring"}), save=False)
    with pytest.raises(UnsoundPlanError):
        run(plan_of(name, **{"noise.mechanism": "sound", "noise.epsilon": 5.0, "training.loss": "mse"}), save=False)


def test_settings_with_a_hyphen_go_into_a_file_and_back(tmp_path):
    plan = plan_of("tp-smc", **{"tp-smc.epsilon": 7.0, "tp-smc.key_bits": 3072})
    (tmp_path / "plan.toml").write_text(dump_plan(plan), encoding="utf-8")
    assert load_plan(tmp_path / "plan.toml") == plan
    assert load_plan(tmp_path / "plan.toml").own_settings("tp-smc").key_bits == 3072


@pytest.mark.parametrize("bits", [1024, 2047])
def test_short_keys_are_refused(bits):
    with pytest.raises(PlanError, match="key_bits"):
        plan_of("tp-smc", **{"tp-smc.key_bits": bits})


@pytest.mark.parametrize("name", ENCRYPTED)
def test_a_missing_package_is_asked_for_by_name(name, monkeypatch):
    for package in ("gmpy2", "tenseal", "nacl.bindings"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PlanError, match=r"needs the package .*pip install 'bilateral\[baselines\]'"):
        run(plan_of(name), save=False)


@pytest.mark.parametrize("name", NOISY)
def test_a_batch_size_that_is_not_public_is_refused(name):
    with pytest.raises(PlanError, match="clips samples"):
        run(plan_of(name, **{"training.batch_size": 0}), save=False)


@pytest.mark.long
def test_a_longer_key_is_a_longer_key():
    short = run(plan_of("tp-smc", **{"training.rounds": 1}), save=False, reference=False)
    long = run(plan_of("tp-smc", **{"training.rounds": 1, "tp-smc.key_bits": 3072}), save=False, reference=False)
    assert torch.equal(weights(short), weights(long))
    assert short.guarantee != long.guarantee
