"""Heterogeneous runs: the gain, who is asked, stopping and going on, starting from trained models."""

from dataclasses import replace

import pytest
import torch

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.kind import ServerAround
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError, DataError, PlanError
from bilateral.learning.hetero.answers import PlainAnswers
from bilateral.runs.hetero.here import ClientsHere
from bilateral.runs.hetero.in_process import members_of, record_of, run_hetero
from bilateral.runs.hetero.parties import answerers_of, deal, make_answers
from bilateral.runs.hetero.plan import HeteroPlan, load_hetero_plan, parse_hetero_plan
from bilateral.runs.hetero.server import HeteroServer
from bilateral.runs.hetero.steps import stages_of

TINY = HeteroPlan(answers="plain").with_settings({
    "clients.number": 3,
    "clients.architectures": [{"name": "mlp-3", "options": {"width": 16}}, {"name": "lenet"}],
    "data.samples_per_client": 20,
    "training.epochs": 3,
    "queries.number": 24,
    "retraining.epochs": 2,
    "iterations": 2,
})  # fmt: skip


def _models(directory):
    tensors = load_checkpoint(directory / "checkpoint.safetensors").tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}


def _equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class _Listening(PlainAnswers):
    def __init__(self):
        super().__init__()
        self.asked = []

    def summed_logits(self, querier, queries, answerers):
        self.asked.append((querier, tuple(queries.shape), tuple(answerers)))
        return super().summed_logits(querier, queries, answerers)


class _Recording:
    def __init__(self, answers):
        self._answers = answers
        self.sums = []

    def offer(self, name, model, samples):
        self._answers.offer(name, model, samples)

    def summed_logits(self, querier, queries, answerers):
        self.sums.append(self._answers.summed_logits(querier, queries, answerers))
        return self.sums[-1]


@pytest.mark.long
def test_the_embedded_default_gains_over_training_alone():
    """The plan that `bilateral hetero` runs without one, secret sharing and all."""
    result = run_hetero(HeteroPlan(), save=False)
    *_, average = result.rows()
    assert result.finished
    assert average["accuracy_after"] > average["accuracy_before"] + 0.04


def test_asking_each_other_gains_over_training_alone():
    """The same in less time: cheaper networks, answers in the clear."""
    networks = [{"name": "mlp-3"}, {"name": "mlp-5", "options": {"width": 32}}]
    plan = HeteroPlan(answers="plain").with_settings({"clients.architectures": networks, "retraining.epochs": 15})
    *_, average = run_hetero(plan, save=False).rows()
    assert average["accuracy_after"] > average["accuracy_before"] + 0.02


def test_a_stopped_run_goes_on_to_the_same_models_bit_for_bit(tmp_path):
    run_hetero(TINY, output=tmp_path / "whole")
    total = len(stages_of(TINY, {"a": 1, "b": 1, "c": 1}))
    for stop in range(total):
        path = tmp_path / f"stopped-{stop}"
        seen = []
        first = run_hetero(
            TINY, output=path, on_progress=seen.append, should_stop=lambda s=stop, n=seen: n[-1].stages_done >= s
        )
        assert (first.stages_done, first.finished) == (stop, False)
        assert not (path / "result.json").exists()
        again = run_hetero(RunDirectory.open(path, load_hetero_plan)[1], output=path, resume=True)
        assert again.finished
        assert _equal(_models(path), _models(tmp_path / "whole"))


def test_a_finished_run_reports_the_same_again(tmp_path):
    first = run_hetero(TINY, output=tmp_path / "out")
    again = run_hetero(TINY, output=tmp_path / "out", resume=True)
    assert again.rows() == first.rows()
    assert again.seconds == first.seconds


def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    run_hetero(TINY, output=tmp_path / "out", training_only=True)
    with pytest.raises(CheckpointError, match="another plan"):
        run_hetero(TINY.with_settings({"seed": 1}), output=tmp_path / "out", resume=True)
    with pytest.raises(PlanError, match="not empty"):
        run_hetero(TINY, output=tmp_path / "out")


def test_a_run_from_trained_models_is_the_run_that_trains_them_itself(tmp_path):
    alone = run_hetero(TINY.with_settings({"queries.pool": "private"}), output=tmp_path / "alone", training_only=True)
    assert alone.stages_done == 3
    assert alone.rows()[-1]["accuracy_after"] is None
    run_hetero(TINY, output=tmp_path / "from-them", trained=tmp_path / "alone")
    run_hetero(TINY, output=tmp_path / "whole")
    assert _equal(_models(tmp_path / "from-them"), _models(tmp_path / "whole"))
    with pytest.raises(CheckpointError, match="other models"):
        run_hetero(TINY.with_settings({"seed": 4}), save=False, trained=tmp_path / "alone")
    with pytest.raises(CheckpointError, match="stopped after local training"):
        run_hetero(TINY, save=False, trained=tmp_path / "whole")


def test_everyone_asks_once_an_iteration_and_nobody_answers_itself():
    answers = _Listening()
    run_hetero(TINY, save=False, answers=answers)
    assert [querier for querier, _, _ in answers.asked] == ["client-1", "client-2", "client-3"] * 2
    for querier, shape, answerers in answers.asked:
        assert shape == (24, 1, 8, 8)
        assert set(answerers) == {"client-1", "client-2", "client-3"} - {querier}


def test_a_fraction_answers_another_one_each_time():
    plan = HeteroPlan(answers="plain").with_settings({"clients.number": 9, "queries.fraction": 0.5})
    asked = {answerers_of(plan, "client-4", iteration) for iteration in range(20)}
    assert all(len(names) == 4 and "client-4" not in names for names in asked)
    assert len(asked) > 5
    assert set().union(*asked) == set(plan.clients.names) - {"client-4"}
    assert answerers_of(plan, "client-4", 3) == answerers_of(plan, "client-4", 3)


def test_the_order_of_the_clients_does_not_matter():
    """Answers of an iteration come from the models before it."""

    def after(order):
        shares = deal(TINY)
        shares = replace(shares, clients={name: shares.clients[name] for name in order})
        clients = ClientsHere(TINY, members_of(TINY, shares), lambda *_: PlainAnswers())
        server = HeteroServer(record_of(TINY, shares), clients, ServerAround("here", "test"))
        server.begin()
        for step in server.steps():
            server.do(step)
        return clients.state_tensors()

    forward, backward = after(TINY.clients.names), after(TINY.clients.names[::-1])
    assert forward.keys() == backward.keys()
    assert all(torch.equal(forward[name], backward[name]) for name in forward)


def test_progress_counts_stages_and_ends_at_one():
    seen = []
    run_hetero(TINY, save=False, on_progress=seen.append)
    assert [at.stages_done for at in seen] == list(range(16))
    shares = [at.share_done for at in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, pytest.approx(1.0))
    assert str(seen[0].stage) == "client-1 trains"
    assert str(seen[3].stage) == "client-1 asks, iteration 1"
    assert seen[-1].stage is None


def test_secure_answers_teach_what_plain_answers_teach():
    """The real protocol against the oracle: the same queries, sums within the rounding of fixed point."""
    plan = TINY.with_settings({"answers": "secure", "iterations": 1})
    secure, seen = _Recording(make_answers(plan)), []
    run_hetero(plan, save=False, answers=secure)
    plain = _Recording(PlainAnswers())
    run_hetero(TINY.with_settings({"iterations": 1}), save=False, answers=plain)
    for ours, oracle in zip(secure.sums, plain.sums, strict=True):
        assert float((ours - oracle).abs().max()) < 2 * 2**-10
    result = run_hetero(plan, save=False, on_progress=seen.append)
    assert result.guarantee.claims
    assert len(seen) > 10  # progress within the stages that ask
    assert [at.share_done for at in seen] == sorted(at.share_done for at in seen)


def test_rows_are_means_over_the_clients_of_an_architecture():
    result = run_hetero(TINY.with_settings({"queries.pool": "private"}), save=False)
    rows = {row["architecture"]: row for row in result.rows()}
    assert list(rows) == ["mlp-3", "lenet", "average"]
    ends = {client.name: client.accuracies[-1] for client in result.clients}
    assert all(len(client.accuracies) == 3 for client in result.clients)
    assert rows["mlp-3"]["accuracy_after"] == pytest.approx((ends["client-1"] + ends["client-3"]) / 2)
    assert rows["average"]["accuracy_after"] == pytest.approx(sum(ends.values()) / 3)
    assert rows["average"]["queries"] == 20  # each private sample once, though 24 were wanted
    keys = {
        "dataset", "clients", "architecture", "method", "queries", "fraction", "accuracy_before", "accuracy_after",
        "seed", "alpha", "selection",
    }  # fmt: skip
    assert keys <= set(rows["average"])


def test_samples_are_dealt_once_and_as_the_plan_says():
    plan = TINY.with_settings({"data.partition": "dirichlet", "data.alpha": 0.3, "data.samples_per_client": 100})
    shares = deal(plan)
    counts = {name: len(share) for name, share in shares.clients.items()}
    assert sum(counts.values()) == 300
    assert len(set(counts.values())) > 1
    rows = torch.cat([share.inputs.flatten(1) for share in shares.clients.values()])
    again = torch.cat([share.inputs.flatten(1) for share in deal(plan).clients.values()])
    assert torch.equal(rows, again)
    assert {len(share) for share in deal(TINY).clients.values()} == {20}
    every = deal(TINY.with_settings({"data.samples_per_client": 0})).clients.values()
    assert sum(len(share) for share in every) == 1438


def test_shrunk_images_are_means_of_blocks():
    whole, small = deal(TINY), deal(TINY.with_settings({"data.shrink": 2}))
    image = whole.test.inputs[0, 0]
    slow = [[float(image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean()) for j in range(4)] for i in range(4)]
    assert torch.allclose(small.test.inputs[0, 0], torch.tensor(slow), atol=1e-6)
    assert small.clients["client-1"].inputs.shape == (20, 1, 4, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.name": "diabetes"}, "classes to learn"),
        ({"data.samples_per_client": 1000}, "at most 1438 samples"),
        ({"data.name": "wine", "data.shrink": 2}, "shrink"),
    ],
)
def test_unfit_data_are_refused_before_anything_is_written(tmp_path, settings, words):
    with pytest.raises(DataError, match=words):
        run_hetero(TINY.with_settings(settings), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_plain_answers_claim_nothing():
    assert isinstance(make_answers(TINY), PlainAnswers)
    result = run_hetero(TINY, save=False)
    assert result.as_dict()["guarantee"]["claims"] == ()


def test_settings_that_came_later_change_no_plan_that_does_not_use_them():
    dumped = TINY.model_dump()
    assert "mixup_weight" not in dumped["queries"]
    assert "from_answers" not in dumped["retraining"]
    control = TINY.with_settings({"retraining.from_answers": False, "queries.mixup_weight": 0.3})
    assert control.digest() != TINY.digest()
    assert control.training_digest() == TINY.training_digest()
    assert parse_hetero_plan(control.model_dump(), "a plan") == control
