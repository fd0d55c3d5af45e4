"""Data and models given as objects of Python: `bilateral.run(model=..., data={"site": dataset, ...})`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

import bilateral
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError, PlanError


class Clinic(TorchDataset):
    """Samples one by one; `tokens`: sentences of numbers of words."""

    def __init__(self, seed, count=60, tokens=False):
        drawn = torch.Generator().manual_seed(seed)
        self.x = torch.randint(1, 20, (count, 6), generator=drawn) if tokens else torch.randn(count, 4, generator=drawn)
        self.y = (self.x > 10).sum(1) > 2 if tokens else self.x[:, 0] > 0
        self.read = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read += 1
        return self.x[index], int(self.y[index])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def plan(**settings):
    return RunPlan().with_settings(
        {"training.rounds": 6, "training.batch_size": 10, "training.learning_rate": 0.2, **settings}
    )


def sites(**options):
    return {"north": Clinic(1, **options), "south": Clinic(2, 40, **options)}


@pytest.mark.parametrize("protection", ["fedavg", "masks", "perturbation"])
def test_a_module_and_datasets_are_all_it_takes(protection):
    chosen = plan(protection=protection, **{"training.rounds": 25})
    result = bilateral.run(chosen, model=network(), data=sites(), test=Clinic(3), save=False, reference=False)
    assert result.metrics["test_accuracy"] > 0.7
    assert list(result.plan.data.sites) == ["north", "south"]


def test_they_train_what_tensors_would():
    as_tensors = {name: (clinic.x, clinic.y.long()) for name, clinic in sites().items()}
    test = Clinic(3)
    one = bilateral.run(plan(protection="fedavg"), model=network(), data=sites(), test=test, save=False)
    other = bilateral.run(
        plan(protection="fedavg"), model=network(), data=as_tensors, test=(test.x, test.y.long()), save=False
    )
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert one.metrics == other.metrics


def test_the_module_that_was_given_is_not_touched_and_where_it_begins_counts():
    given = network()
    before = [p.clone() for p in given.parameters()]
    bilateral.run(plan(), model=given, data=sites(), save=False)
    assert all(torch.equal(p, q) for p, q in zip(given.parameters(), before, strict=True))


def test_a_function_makes_the_model_for_the_data():
    def build(input_shape, num_outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], num_outputs))

    result = bilateral.run(plan(), model=build, data=sites(), options={"num_outputs": 3}, save=False)
    assert result.model[1].weight.shape == (3, 4)


def test_tokens_go_where_the_protection_allows_them():
    def build():
        return nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(48, 2))

    data = sites(tokens=True)
    result = bilateral.run(
        plan(protection="masks"), model=build, data=data, options={"num_outputs": 2}, save=False, reference=False
    )
    assert result.rounds == 6


def test_only_batches_are_read():
    data = sites()
    chosen = plan(**{"training.rounds": 1, "protection": "fedavg", "training.evaluate_every": 1})
    bilateral.run(chosen, model=network(), data=data, test=Clinic(3), save=False, reference=False)
    first_looks = 10  # of shapes and of the task, before the first round
    assert 10 <= data["north"].read <= 10 + first_looks


def test_without_test_data_a_fifth_of_each_site_is_held_out():
    chosen = plan(**{"training.rounds": 1, "training.batch_size": 0, "protection": "fedavg"})
    result = bilateral.run(chosen, model=network(), data=sites(), save=False, reference=False, keep_messages=True)
    uploads = [entry.message for entry in result.transcript.entries if type(entry.message).__name__ == "Upload"]
    assert sorted(upload.weight for upload in uploads) == [32, 48]


def test_workers_change_nothing():
    found = [
        bilateral.run(plan(**{"data.workers": n}), model=network(), data=sites(), save=False, reference=False)
        for n in (0, 2)
    ]
    for mine, theirs in zip(*(result.model.parameters() for result in found), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_goes_on_with_the_same_objects(tmp_path):
    whole = bilateral.run(plan(), model=network(), data=sites(), save=False)
    chosen = {"model": network(), "data": sites(), "output": tmp_path / "out"}
    rounds = iter((False, True))
    bilateral.run(plan(), **chosen, should_stop=lambda: next(rounds))
    resumed = bilateral.run(plan(), **chosen, resume=True)
    for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(DataError, match="objects of Python, which are not stored"):
        bilateral.export_run(tmp_path / "out", tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ({}, DataError, "by the names of sites"),
        ({"a": torch.utils.data.DataLoader(Clinic(1))}, DataError, "got DataLoader"),
        ({"a": [1, 2, 3]}, DataError, "map-style torch Dataset"),
        ({"a": Clinic(1), "b": (torch.zeros(90, 5), torch.arange(90) % 2)}, DataError, r"b: .*shape \[5\], not \[4\]"),
        ({"a": Clinic(1), "b": Clinic(2, 2)}, DataError, "too few to hold"),
    ],
)
def test_what_a_newcomer_gets_wrong_is_told(data, error, said):
    with pytest.raises(error, match=said) as caught:
        bilateral.run(plan(protection="fedavg"), model=network(), data=data, save=False)
    assert caught.value.remedy


def test_every_difference_of_every_site_is_listed_at_once():
    drawn = torch.Generator().manual_seed(0)
    split = lambda width: (torch.randn(20, width, generator=drawn), torch.arange(20) % 2)  # noqa: E731

    def clinic(width, columns, names=("ill", "well")):
        return bilateral.Dataset("c", "classification", split(width), split(width), 2, names, columns)

    data = {
        "a": clinic(2, ("age", "sex")),
        "b": clinic(3, ("age", "weight", "pulse")),
        "c": clinic(2, ("sex", "age"), ("well", "ill")),
    }
    with pytest.raises(DataError) as caught:
        bilateral.run(plan(protection="fedavg"), model=nn.Linear(2, 2), data=data, test=split(2), save=False)
    said = str(caught.value)
    assert "b: a sample has the shape [3], not [2], missing column 'sex', columns 'weight', 'pulse' too many" in said
    assert "c: columns in another order: 'sex' at place 0, not 'age', classes in another order" in said


def test_options_without_data_are_refused():
    with pytest.raises(PlanError, match="for `data` that are given"):
        bilateral.run(plan(), options={"task": "regression"})
