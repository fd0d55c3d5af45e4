"""From a plan to a stack of protections, checked and built.

perturbation (or the plain model)  ->  clipping and noise  ->  masks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from bilateral.engine.federation import Federation
from bilateral.engine.layers import Layer, Surroundings, mask_settings, perturbed_layer, plain_layer
from bilateral.engine.plan import RunPlan
from bilateral.engine.published_layer import mp_cdp_layer, mp_dp_naive_layer, published_layer
from bilateral.engine.sound_layer import sound_layer
from bilateral.learning.adaptive_aggregation import AdaptiveAggregation
from bilateral.learning.aggregation import Aggregation, PlainAggregation
from bilateral.learning.client import PlainUploader, Schedule, Uploader
from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.learning.masked_aggregation import MaskedAggregation, PairwiseAggregation
from bilateral.learning.uploading import AddPairwise, MaskUploader, PairwiseUploader
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.combination import Combination, combine
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.float_masks import FloatMaskClient
from bilateral.protocols.mask.guarantee import float_mask_guarantee
from bilateral.protocols.mask.guarantee import guarantee as mask_guarantee
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.noise.privacy_report import PrivacyReport

CLOSED_BY_MASKS = ((0, "server"), (3, "server"))
"""Ledger lines about single uploads, which the server no longer sees as they are."""


@dataclass
class Stack:
    """Everything that a training needs of its protections."""

    name: str
    server: ServerHalf
    halves: Sequence[ClientHalf]
    aggregation: Aggregation
    uploaders: Sequence[Uploader]
    schedules: Sequence[Schedule]
    guarantee: Guarantee
    weight: int | None = None
    """The clients' weight in the average; None is the number of their samples."""
    privacy: PrivacyReport | None = None


def combination_of(plan: RunPlan, federation: Federation, graph: ScaleGraph) -> Combination:
    """The plan's stack, checked."""
    num_clients = len(federation.clients)
    chosen = Combination(
        perturbed=plan.protection == "perturbation",
        loss=federation.loss,
        masks=plan.masks(num_clients),
        mechanism=plan.noise.mechanism,
        num_participants=plan.federation.num_participants(num_clients),
        num_statistics=graph.num_statistics,
    )
    chosen.refuse_unsound()
    return chosen


def build_stack(plan: RunPlan, federation: Federation, model: nn.Module, graph: ScaleGraph) -> Stack:
    """Both halves of everything that the plan asks for, around `model`."""
    around = Surroundings(plan, federation, model, graph)
    chosen = combination_of(plan, federation, graph)
    if chosen.mechanism == "published":
        keys = make_key_rings(around)
        return _with_pairwise_noise(chosen.name, *published_layer(around, keys), around, keys)
    layer = LAYERS[chosen.mechanism](around)
    match chosen.masks:
        case "ring":
            return _with_ring_masks(chosen.name, layer, around)
        case "float":
            return _with_float_masks(chosen.name, layer, around)
        case "none":
            return _in_the_clear(chosen.name, layer)


def _without_noise(around: Surroundings) -> Layer:
    return perturbed_layer(around) if around.plan.protection == "perturbation" else plain_layer(around)


LAYERS: dict[str, Callable[[Surroundings], Layer]] = {
    "none": _without_noise,
    "sound": sound_layer,
    "mp-cdp": mp_cdp_layer,
    "mp-dp-naive": mp_dp_naive_layer,
}


def make_key_rings(around: Surroundings) -> list[KeyRing]:
    """Every client's keys. Identities are long-lived and pinned by the others; here they come from the seed."""
    secrets = around.secrets
    identities = {name: Identity.generate(secrets.child("identity", name)) for name in around.names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    return [
        KeyRing(
            name,
            make_run_id(around),
            identities[name],
            {other: key for other, key in pinned.items() if other != name},
            secrets.child("keys", name),
        )
        for name in around.names
    ]


def make_run_id(around: Surroundings) -> bytes:
    """What the keys and masks of a run are bound to."""
    return around.secrets.child("run id").random_bytes(16)


def _in_the_clear(name: str, layer: Layer) -> Stack:
    return _stack(name, layer, PlainAggregation(), [PlainUploader() for _ in layer.halves])


def _with_ring_masks(name: str, layer: Layer, around: Surroundings) -> Stack:
    run_id, keys = make_run_id(around), make_key_rings(around)
    settings = mask_settings(around)
    server = MaskServer(run_id, around.names, settings, layer.fixed_bounds, pinned=_pinned(keys))
    uploaders = [
        MaskUploader(
            MaskClient(ring, settings, around.secrets.child("masks", ring.name), fixed_bounds=layer.fixed_bounds),
            ring,
            layer.privatise[index] if layer.privatise else None,
            layer.set_norm[index] if layer.set_norm else None,
        )
        for index, ring in enumerate(keys)
    ]
    # The question of cross entropy has a row a sample.
    asks = around.plan.protection == "perturbation" and around.federation.loss == "ce"
    masked = mask_guarantee(settings, around.num_participants, shows_batch=asks)
    kept = tuple(leak for leak in masked.leaks if leak.ledger_line not in layer.covers)
    layer.guarantees.append(replace(masked, leaks=kept))
    layer.closed.extend(CLOSED_BY_MASKS)
    aggregation: Aggregation = MaskedAggregation(server, run_id, around.names, layer.shape)
    if layer.adaptive is not None:
        aggregation = AdaptiveAggregation(aggregation, layer.adaptive)
    return _stack(name, layer, aggregation, uploaders)


def _with_float_masks(name: str, layer: Layer, around: Surroundings) -> Stack:
    """The papers' masks: uploads stay visible to line 6, not to line 3."""
    aggregation, keys = around.plan.aggregation, make_key_rings(around)
    masks = [FloatMaskClient(ring, aggregation.float_scale, aggregation.settings()) for ring in keys]
    layer.guarantees.append(float_mask_guarantee(aggregation.float_scale))
    layer.closed.extend(CLOSED_BY_MASKS)
    return _with_pairwise_noise(name, layer, [one.mask for one in masks], around, keys)


def _with_pairwise_noise(
    name: str, layer: Layer, add_pairwise: Sequence[AddPairwise], around: Surroundings, keys: Sequence[KeyRing]
) -> Stack:
    """Real-valued noise that cancels between clients: float masks and P2's."""
    uploaders = [PairwiseUploader(ring, add) for ring, add in zip(keys, add_pairwise, strict=True)]
    aggregation = PairwiseAggregation(make_run_id(around), around.names, _pinned(keys))
    return _stack(name, layer, aggregation, uploaders)


def _pinned(keys: Sequence[KeyRing]) -> dict[str, bytes]:
    """The identities that the server knows: it lets nobody else register under a client's name."""
    return {ring.name: ring.announce().identity_key for ring in keys}


def _stack(name: str, layer: Layer, aggregation: Aggregation, uploaders: Sequence[Uploader]) -> Stack:
    return Stack(
        name,
        layer.server,
        layer.halves,
        aggregation,
        uploaders,
        layer.schedules,
        combine(name, layer.guarantees, layer.closed),
        layer.weight,
        layer.privacy,
    )
