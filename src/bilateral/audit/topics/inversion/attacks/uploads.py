"""What an adversary can take for a client's gradient, out of its own view.

Naive: the first row of the upload, read as numbers, on the model that the client was sent. That is what the papers
evaluate, and it needs messages alone. Adaptive: the server takes off the masks that it knows and undoes its own
disguise (`own_gradient`); where other masks leave it nothing but a sum, it has the sum (`sum_gradient`), less what
colluding clients can account for, and deals out what the sum shows (`best_explained`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import replace_all_batch_norm_modules_

from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.audit.topics.inversion.attacks.stripped_masks import stripped_upload
from bilateral.audit.views import Facts, View
from bilateral.data import Split
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening
from bilateral.protocols.mask.ring_words import format_of
from bilateral.protocols.mask.widths import WIDEST, unpacked
from bilateral.protocols.messages import HiddenUpload, RoundModel, Upload

_RING_UNIT = 2.0**-63
_MADE_UP = 0.1
"""Spread of the weights of who has none to go by."""


def true_model(facts: Facts) -> GradientModel:
    """The plan's own network, in evaluation mode: dropout is noise to an attacker too."""
    return GradientModel(facts.network(torch.zeros(facts.graph.num_parameters)).eval(), facts.graph, facts.loss)


def client_model(facts: Facts) -> GradientModel:
    """The network that clients are sent: P2 expands it, everything else sends the plan's own."""
    plain = true_model(facts)
    examples = torch.zeros(2, *facts.input_shape)
    network, graph = facts.plan.chosen.client_network(plain.network, facts.graph, examples)
    return GradientModel(network.eval(), graph, facts.loss)


def sent_parameters(view: View, round_index: int) -> Tensor:
    """What clients were sent to train on in a round; in sealed training, the closest that the adversary has."""
    message = view.message(RoundModel, round_index=round_index)
    assert message is not None, f"no model of round {round_index} in this view"
    if message.parameters.numel():
        return message.parameters
    if view.server_rounds:  # in sealed training nobody was sent any, but the server has them
        return view.server_round(round_index).parameters.float()
    made_up = torch.Generator().manual_seed(0)
    return torch.randn(view.facts.graph.num_parameters, generator=made_up) * _MADE_UP


def upload_of(view: View, round_index: int, client: str) -> Upload | MaskedUpload | HiddenUpload | None:
    """The last upload of a client in a round, masked or encrypted or not."""
    plain = view.message(Upload, round_index=round_index, sender=client)
    masked = plain or masked_upload_of(view, round_index, client)
    return masked or view.message(HiddenUpload, round_index=round_index, sender=client)


def masked_upload_of(view: View, round_index: int, client: str) -> MaskedUpload | None:
    """The last masked upload, its values spread over 64 bits: those of a narrower ring times what fills it."""
    masked = view.message(MaskedUpload, round_index=round_index, sender=client)
    opening = view.message(MaskOpening, round_index=round_index)
    if masked is None or opening is None or opening.width == WIDEST:
        return masked
    width = format_of(opening).width
    return replace(masked, values=unpacked(masked.values, width) << (WIDEST - width))


def rows_of(upload: Upload | MaskedUpload | HiddenUpload, num_parameters: int) -> Tensor:
    """All terms of an upload as numbers, terms x parameters; ring values and ciphertexts as fractions of the ring."""
    if isinstance(upload, Upload):
        return upload.terms.double()
    words = upload.as_numbers() if isinstance(upload, HiddenUpload) else upload.values
    values = words.double() * _RING_UNIT
    values = F.pad(values, (0, max(0, num_parameters - len(values))))
    count = len(values) // num_parameters
    return values[: count * num_parameters].view(count, num_parameters)


def naive_gradient(view: View, round_index: int, client: str) -> Tensor | None:
    """The first term, taken for a gradient of the model that was sent."""
    upload = upload_of(view, round_index, client)
    return None if upload is None else rows_of(upload, len(sent_parameters(view, round_index)))[0]


def own_gradient(view: View, round_index: int, client: str) -> Tensor | None:
    """What the server's secrets make of one upload by itself, without the masks that it knows; None if there is none.

    Under ring masks that is noise as long as they do their work, and the client's gradient if they do not.
    """
    upload = upload_of(view, round_index, client)
    if isinstance(upload, MaskedUpload):
        upload = stripped_upload(view, round_index, client, {})
    if isinstance(upload, HiddenUpload):
        upload = taken_for_an_upload(view, upload, round_index)
    return None if upload is None else view.server_round(round_index).gradient_of(upload, client)


def taken_for_an_upload(view: View, hidden: HiddenUpload, round_index: int) -> Upload:
    """The bytes of a ciphertext as numbers, in the form of an upload: what is left to a server without the key."""
    total = view.server_round(round_index).total
    count = len(total.terms)
    rows = rows_of(hidden, total.terms.shape[1])
    rows = F.pad(rows, (0, 0, 0, max(0, count - len(rows))))[:count]
    return Upload(round_index, 1, rows, torch.zeros_like(total.statistics))


def sum_gradient(view: View, round_index: int) -> tuple[Tensor, tuple[str, ...]]:
    """The mean gradient of the clients that do not collude with the server, and who they are.

    Colluders recompute theirs from their batches and the true model, which the server has; their weight in the average
    is the number of their samples (1 where noise makes all weights equal).
    """
    kept = view.server_round(round_index)
    honest = tuple(name for name in kept.total.contributors if name not in view.parties)
    colluding = [name for name in kept.total.contributors if name in view.parties]
    if not colluding:
        return kept.recovered(), honest
    weights = {name: _weight(view, name) for name in colluding}
    total = kept.total.total_weight
    rest = kept.recovered() * total
    model = _training_model(view.facts, kept.parameters.dtype)
    for name in colluding:
        rest = rest - weights[name] * _gradient_of_batch(model, kept.parameters, view.batches[name, round_index])
    return rest / max(1, total - sum(weights.values())), honest


def _training_model(facts: Facts, dtype: torch.dtype) -> GradientModel:
    """The plan's own network as clients train it: BatchNorm goes by the statistics of the batch."""
    network = facts.network(torch.zeros(facts.graph.num_parameters, dtype=dtype)).eval()
    return GradientModel(replace_all_batch_norm_modules_(network), facts.graph, facts.loss)


def _weight(view: View, client: str) -> int:
    return 1 if view.facts.plan.traits.equal_weights else len(view.data[client])


def _gradient_of_batch(model: GradientModel, parameters: Tensor, batch: Split) -> Tensor:
    targets = as_rows(batch.targets, model.graph.num_outputs, parameters.dtype)
    with torch.no_grad():
        return model.gradients(parameters[None], batch.inputs[None].to(parameters.dtype), targets[None])[0].double()


def as_rows(targets: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets as (samples x outputs): class numbers become one-hot."""
    if targets.dim() == 1 and not targets.is_floating_point():
        return F.one_hot(targets, num_outputs).to(dtype)
    return targets.view(len(targets), -1).to(dtype)


def best_explained(
    model: GradientModel, parameters: Tensor, candidates: Tensor, gradient: Tensor, label: int
) -> Tensor:
    """The candidate whose gradient points most as this one does: how a server deals out what it read in a sum.

    `label`: as the gradient's head shows it; -1 where samples have none, and then directions have no sign.
    """
    num_outputs = model.graph.num_outputs
    target = torch.zeros(num_outputs) if label < 0 else F.one_hot(torch.tensor(label), num_outputs)
    targets = target.to(candidates.dtype).expand(len(candidates), 1, -1)
    with torch.no_grad():
        found = model.gradients(parameters.expand(len(candidates), -1), candidates[:, None], targets)
    alike = F.cosine_similarity(found.double(), gradient.double()[None])
    return candidates[int((alike.abs() if label < 0 else alike).argmax())]


def most_like(candidates: Tensor, hint: Tensor) -> Tensor:
    """The nearest candidate."""
    return candidates[int((candidates - hint).flatten(1).norm(dim=1).argmin())]
