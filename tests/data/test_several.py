"""Several inputs a sample: laid together by datasets and splits, taken apart by the model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.rounds.harness import conduct
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from bilateral import RunPlan, run
from bilateral.data import Dataset, Split, validate
from bilateral.data.dataset import LazySplit
from bilateral.data.mapped import MappedSamples
from bilateral.data.several import laid_together
from bilateral.engine.federation import load_federation
from bilateral.engine.setup import initial_model, make_blueprint
from bilateral.errors import DataError, ModelError, PlanError
from bilateral.models.modes import training_copy
from bilateral.runs.hetero.parties import make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.rounds.export import export_run, load_exported
from bilateral.serving.model import ServedModel

WORDS = 9


class Notes(TorchDataset):
    """A picture and a text, as a tuple or by name; which class, both say."""

    def __init__(self, count=24, named=False, seed=0, words=3):
        draws = torch.Generator().manual_seed(seed)
        self.pictures = torch.randn(count, 1, 4, 4, generator=draws)
        self.texts = torch.randint(WORDS, (count, words), generator=draws)
        self.targets = torch.arange(count) % 2
        self.named = named

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        picture, text = self.pictures[index], self.texts[index]
        inputs = {"text": text, "picture": picture} if self.named else (picture, text)
        return inputs, int(self.targets[index])


class Reader(nn.Module):
    def __init__(self, outputs=2):
        super().__init__()
        self.look, self.words, self.head = nn.Linear(16, 5), nn.Embedding(WORDS, 4), nn.Linear(9, outputs)

    def forward(self, picture, text):
        seen = self.look(picture.flatten(1)).relu()
        return self.head(torch.cat([seen, self.words(text).mean(1)], 1))


def notes(named=False):
    """In the form of a plan's loader."""
    train, test = Notes(60, named, 1), Notes(20, named, 2)
    return Dataset("notes", "classification", train, test, 2)


def reader(input_shape, num_outputs):
    expected = ((1, 4, 4), (3,))
    assert input_shape in (expected, dict(zip(("picture", "text"), expected, strict=True)))
    return Reader(num_outputs)


def plan(named=False, **changed):
    here = "tests.data.test_several"
    small = {
        "data.name": f"{here}:notes",
        "data.options": {"named": named},
        "model.name": f"{here}:reader",
        "protection": "masks",
        "federation.clients": 3,
        "training.rounds": 2,
        "training.batch_size": 8,
        "training.dtype": "float64",
    }
    return RunPlan().with_settings({**small, **{key.replace("__", "."): value for key, value in changed.items()}})


@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=50, deadline=None)
def test_what_is_taken_apart_is_what_was_laid_together(seed, count, named, dtype):
    draws = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-(2**48) + 1, 2**48, (count, 2, 3), generator=draws)
    values = torch.randn(count, 4, generator=draws), numbers, torch.rand(count, 1, 2, generator=draws) < 0.5
    given_ = dict(zip(("a", "b", "c"), values, strict=True)) if named else values
    whole = laid_together(given_, "a test")
    found = whole.form.taken_apart(whole.rows.to(dtype))
    assert torch.equal(found[0], values[0].to(dtype))
    assert torch.equal(found[1], values[1])
    assert torch.equal(found[2], values[2])
    assert [part.dtype for part in whole.form.parts] == ["float32", "int64", "bool"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("named", [False, True])
def test_a_dataset_of_tuples_or_dicts_is_a_split_like_one_of_tensors(named, workers):
    source = Notes(named=named)
    lazy = LazySplit(MappedSamples(source, "classification", "a test", workers=workers))
    assert lazy.form.by_name is named
    parts = dict(zip([p.name for p in lazy.form.parts], lazy.form.taken_apart(lazy.inputs), strict=True))
    picture, text = (parts["picture"], parts["text"]) if named else lazy.form.taken_apart(lazy.inputs)
    assert torch.equal(picture, source.pictures)
    assert torch.equal(text, source.texts)
    whole = Split({"text": source.texts, "picture": source.pictures} if named else (picture, text), source.targets)
    assert whole.form == lazy.form
    assert torch.equal(whole.subset(torch.tensor([3, 1])).inputs, lazy.subset(torch.tensor([3, 1])).inputs)
    assert validate(notes(named)).train.form == lazy.form


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("protection", ["fedavg", "masks"])
def test_gradients_of_a_model_of_several_inputs_are_plain_autograds(protection, named):
    chosen = plan(named, protection=protection, training__rounds=1)
    federation = load_federation(chosen)
    blueprint = make_blueprint(chosen, federation)
    training, exchange = blueprint.server(), blueprint.local_exchange(lambda *_: None)
    own, source = training_copy(initial_model(chosen, federation.problem)), Notes(60, named, 1)
    own._forward_pre_hooks.clear()  # a model as its author has it
    training.advance(0, federation.names, exchange)
    total, weights = 0, 0
    for client in exchange.clients.values():
        batch = client.batch(0)
        parts = federation.problem.form.taken_apart(batch.inputs)
        pictures = parts[1] if named else parts[0]
        rows = [int((source.pictures == one.float()).flatten(1).all(1).nonzero()) for one in pictures]
        own.zero_grad()
        loss = F.cross_entropy(own(source.pictures[rows].double(), source.texts[rows]), source.targets[rows])
        loss.backward()
        total = total + client.weight * torch.cat([p.grad.flatten() for p in own.parameters()])
        weights += client.weight
    expected = total / weights
    assert float((training.last_gradient - expected).abs().max()) < 1e-10 * float(expected.abs().max())


def test_a_run_over_given_datasets_learns_and_its_model_takes_what_it_always_took():
    settings_ = {"protection": "masks", "training.rounds": 3, "training.local_epochs": 1}
    data = {name: Notes(seed=seed) for seed, name in enumerate(("north", "south", "west"))}
    result = run(RunPlan().with_settings(settings_), model=Reader(), data=data, save=False)
    held = Notes(seed=7)
    outputs = result.model(held.pictures, held.texts)
    assert outputs.shape == (24, 2)
    rows = Split((held.pictures, held.texts), held.targets).inputs
    assert torch.equal(result.model(rows), outputs)


def test_sound_noise_takes_them():
    noisy = plan(noise__mechanism="sound", noise__noise_multiplier=1.0, protection="fedavg")
    assert run(noisy, save=False, reference=False).rounds == 2


@pytest.mark.parametrize("protection", ["perturbation", "sealed"])
def test_what_traces_a_model_refuses_several_inputs_and_says_what_takes_them(protection):
    with pytest.raises(ModelError, match=r"several inputs, \(float32 \[1, 4, 4\], int64 \[3\]\)") as refusal:
        run(plan(protection=protection), save=False)
    assert "masks" in str(refusal.value)


class OneTensor(Reader):
    """What the refusal advises: one tensor, of which the model takes its parts."""

    def forward(self, x):
        seen = self.look(x[:, :16]).relu()
        return self.head(torch.cat([seen, self.words(x[:, 16:].long().clamp(0, WORDS - 1)).mean(1)], 1))


def test_perturbation_takes_one_tensor_of_the_same_as_the_refusal_says():
    source = Notes(60)
    rows = torch.cat([source.pictures.flatten(1), source.texts.float()], 1)
    data = {name: Split(rows[start::3], source.targets[start::3]) for start, name in enumerate("abc")}
    result = run(RunPlan().with_settings({"training.rounds": 1}), model=OneTensor(), data=data, save=False)
    assert result.difference_to_fedavg < 1e-3


def test_sites_whose_inputs_differ_are_refused_by_what_differs():
    data = {"north": Notes(), "south": Notes(words=4)}
    with pytest.raises(DataError, match=r"south: the inputs are \(float32 \[1, 4, 4\], int64 \[4\]\), not"):
        run(RunPlan().with_settings({"protection": "masks"}), model=Reader(), data=data, test=Notes(), save=False)


def test_samples_whose_parts_differ_are_refused():
    class Ragged(Notes):
        def __getitem__(self, index):
            (picture, text), target = super().__getitem__(index)
            return (picture, text[: 1 + index % 2]), target

    lazy = LazySplit(MappedSamples(Ragged(), "classification", "a test"))
    with pytest.raises(DataError, match=r"same inputs in every sample of a test, got .* and .*"):
        lazy.subset(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((), "empty tuple"),
        ((torch.zeros(3, 2), torch.zeros(4, 2)), "as many samples"),
        ((torch.zeros(3, 2, dtype=torch.float64),), "float32, int64 or bool"),
        (("words", torch.zeros(3, 2)), "got str"),
        (({"not a name": torch.zeros(3, 2)}), "model's arguments"),
        ((torch.full((3, 1), 2**48),), "below 2\\^48"),
    ],
)
def test_inputs_that_cannot_be_laid_together_are_refused_by_name(inputs, words):
    with pytest.raises(DataError, match=words):
        Split(inputs, torch.zeros(3, dtype=torch.int64))


def test_different_networks_answer_about_one_input():
    hetero = HeteroPlan()
    with pytest.raises(DataError, match="several inputs"):
        make_client(hetero, hetero.clients.names[0], notes().train, 2)


def test_networks_of_the_zoo_take_one_input():
    with pytest.raises(ModelError, match="mlp-3 takes one input, and these data have 2"):
        run(plan(model__name="mlp-3"), save=False)


def test_such_a_model_is_exported_and_loaded(tmp_path):
    run(plan(named=True), output=tmp_path / "run", reference=False)
    names = {"model": "tests.data.test_several:reader", "data": "tests.data.test_several:notes"}
    with pytest.raises(PlanError, match="several inputs"):
        export_run(tmp_path / "run", tmp_path / "model.onnx", **names)
    export_run(tmp_path / "run", tmp_path / "model.safetensors", **names)
    with pytest.raises(PlanError, match="not served on shares"):
        ServedModel.of_run(tmp_path / "run", ("bilateral", "serve"), **names)
    loaded = load_exported(tmp_path / "model.safetensors", builder=names["model"]).model
    held = notes(named=True).test
    text, picture = held.form.taken_apart(held.inputs.double())
    assert torch.equal(loaded(held.inputs.double()), loaded(picture=picture, text=text))


def test_sites_elsewhere_are_told_of_several_inputs_and_give_the_same_model(tmp_path):
    here = run(plan(), save=False, reference=False)
    there = conduct(plan(), tmp_path / "run")
    ours, theirs = here.model.state_dict(), there.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert there.metrics == here.metrics
