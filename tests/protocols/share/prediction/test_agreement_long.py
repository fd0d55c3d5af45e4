"""Many real images: every secret-shared logit is plaintext fixed point's within 2^-12, and the class is float's.

Run by name: `pytest -m long tests/protocols/share/prediction/test_agreement_long.py -s` (`-k sealed` for one style).
BILATERAL_NUM_PREDICTIONS sets how many images (10,000 unless told).
All three parties run in this process, so this measures agreement and not speed.
"""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from tests.protocols.share.harness import Group, generator

from bilateral.data import load_dataset
from bilateral.errors import MissingDataError
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import HARDENED, SEALED

pytestmark = pytest.mark.long
NUM_IMAGES = int(os.environ.get("BILATERAL_NUM_PREDICTIONS", "10000"))
NUM_TRAINED, BATCH, EPOCHS = 2048, 32, 2
TOLERANCE = 2.0**-12
NETWORKS = {"vgg-7": {}, "resnet-8": {}, "resnet-10": {}}


@pytest.fixture(scope="module")
def images(data_dir):
    try:
        found = load_dataset("cifar10", data_dir)
    except MissingDataError as error:
        pytest.skip(str(error))
    return found


def trained(name, split):
    """The network after a little training: activations and logits are no longer those of random weights."""
    model = build_model(name, input_shape=(3, 32, 32), num_outputs=10, seed=0, **NETWORKS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()
    source = generator(0)
    for _ in range(EPOCHS):
        for indices in torch.randperm(NUM_TRAINED, generator=source).split(64):
            loss = F.cross_entropy(model(split.inputs[indices]), split.targets[indices])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # VGG-7 has no BatchNorm, and diverges without
            optimizer.step()
    assert torch.isfinite(loss)
    return model.eval()


def chosen_images(dataset):
    """Test images first, then those that were not trained on, then all again if more are wanted."""
    pool = torch.cat([dataset.test.inputs, dataset.train.inputs[NUM_TRAINED:], dataset.train.inputs[:NUM_TRAINED]])
    return pool[torch.arange(NUM_IMAGES) % len(pool)]


@pytest.mark.parametrize("style", [SEALED, HARDENED], ids=lambda style: style.name)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_logit_of_real_images_agrees_with_plaintext_and_the_class_with_float(images, name, style):
    model = trained(name, images.train)
    compiled = compile_model(model, images.train.inputs[:256])
    group = Group(style=style)
    sessions = group.open(compiled)
    worst, num_equal, num_done, started = 0.0, 0, 0, time.monotonic()
    for queries in chosen_images(images).split(BATCH):
        found = group.predict(queries, sessions=sessions)
        group.log.clear()  # it would hold all of them
        worst = max(worst, float((found - predict(compiled, queries)).abs().max()))
        with torch.no_grad():
            num_equal += int((found.argmax(1) == model(queries).argmax(1)).sum())
        num_done += len(queries)
        if num_done % 512 < BATCH or num_done == NUM_IMAGES:
            seconds = time.monotonic() - started
            sys.stderr.write(
                f"{name}, {style.name}: {num_done} of {NUM_IMAGES} images, {seconds:.0f} s, largest difference 2^"
                f"{torch.tensor(worst).log2():.1f}, classes equal {num_equal / num_done:.4%}\n"
            )
        assert worst < TOLERANCE, f"{name}: a logit differs by {worst} after {num_done} images"
    assert num_done == NUM_IMAGES  # both styles within the bound of one oracle: they differ by twice of it at most
    assert num_equal >= 0.999 * NUM_IMAGES
