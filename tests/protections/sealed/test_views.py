"""What each party of a round receives, as it travels: uniform words, whatever the others hold.

(The gates themselves: tests/protocols/share/training. Here: that nothing else travels beside them.)
"""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from tests.protections.sealed.harness import Sealed, plan_of

from bilateral.protections.sealed.messages import (
    DealRequest,
    Dealt,
    SealedModel,
    SealedTurn,
    SealedTurnReply,
    SealedWeights,
)
from bilateral.protocols.mask.messages import MaskedUpload

LEAST = 1e-4


def high_bits(parts):
    """Numbers in [0, 1) of all whole words of these tensors; of packed bits, the last word of a part may be short."""
    words = [part.reshape(-1)[:-1].numpy().view(np.uint64) for part in parts if part.numel() > 8]
    return np.concatenate(words).astype(np.float64) / 2.0**64


def uniform(parts):
    return kstest(high_bits(parts), "uniform").pvalue


@pytest.fixture(scope="module")
def rounds():
    sealed = Sealed(plan_of(**{"training.loss": "ce"}))
    for round_index in range(2):
        sealed.advance(round_index)
    return sealed


def parts_of(messages):
    return [part for message in messages for part in message.parts]


def test_a_client_receives_uniform_words(rounds):
    for name in rounds.names:
        weights = [part for message in rounds.messages(SealedWeights, receiver=name) for part in message.weights]
        assert uniform(weights) > LEAST
        assert uniform(parts_of(rounds.messages(SealedTurnReply, receiver=name))) > LEAST


def test_the_server_receives_uniform_words(rounds):
    for name in rounds.names:
        assert uniform(parts_of(rounds.messages(SealedTurn, sender=name))) > LEAST
        assert uniform([message.values for message in rounds.messages(MaskedUpload, sender=name)]) > LEAST


def test_what_travels_has_the_same_sizes_whatever_the_values_are():
    shapes, boxes = [], []
    for seed in (0, 1):
        sealed = Sealed(plan_of(**{"seed": seed, "federation.dealer": "auditor"}))
        with torch.no_grad():
            for parameter in sealed.training.model.parameters():
                parameter.mul_(1 + seed)
        sealed.advance(0)
        told = sealed.messages(SealedTurn, sender="client-1") + sealed.messages(SealedTurnReply, receiver="client-1")
        shapes.append([tuple(part.shape for part in message.parts) for message in told])
        (message,) = sealed.messages(Dealt)
        boxes.append([len(box) for box in message.boxes])
    assert shapes[0] == shapes[1]
    assert boxes[0] == boxes[1]


def test_a_dealer_receives_the_same_whatever_the_weights_and_the_batches_are():
    requests = []
    for factor in (1.0, 3.0):
        sealed = Sealed(plan_of(**{"federation.dealer": "auditor"}))
        with torch.no_grad():
            for parameter in sealed.training.model.parameters():
                parameter.mul_(factor)
        for client in sealed.local.clients.values():
            client._data.inputs.mul_(factor / 4)
        sealed.advance(0)
        requests.append(sealed.messages(DealRequest))
    assert requests[0] == requests[1]


def test_the_model_that_all_are_sent_says_nothing_of_its_parameters(rounds):
    models = rounds.messages(SealedModel)
    assert all(message.parameters.numel() == 0 and message.front == () for message in models)
    assert len({message.terms for message in models}) == 1


def test_the_words_of_an_upload_alone_are_no_gradient():
    """Without the server's own part they are uniform: masks hide what is hidden already."""
    sealed = Sealed()
    uploads = []
    for client in sealed.local.clients.values():
        masks = client._uploader._masks
        whole = masks.mask

        def mask(upload, *, context, whole=whole):
            uploads.append(upload.terms.reshape(-1))
            return whole(upload, context=context)

        masks.mask = mask
    sealed.advance(0)
    assert len(uploads) == 3
    weights = [words[: 30 * 32] for words in uploads]  # of the first layer; biases are shares too
    assert uniform(weights) > LEAST
