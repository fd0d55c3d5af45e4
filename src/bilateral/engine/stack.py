"""From a plan to a stack of protections, checked, with the recipe for each side.

perturbation (or the plain model)  ->  clipping and noise  ->  masks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from bilateral.engine.layers import ClientParts, Layer, Seat, Surroundings, mask_settings, perturbed_layer, plain_layer
from bilateral.engine.plan import RunPlan
from bilateral.engine.published_layer import mp_cdp_layer, mp_dp_naive_layer, published_layer
from bilateral.engine.sound_layer import sound_layer
from bilateral.learning.adaptive_aggregation import AdaptiveAggregation
from bilateral.learning.aggregation import Aggregation, PlainAggregation
from bilateral.learning.client import PlainUploader, Uploader
from bilateral.learning.halves import ServerHalf
from bilateral.learning.masked_aggregation import MaskedAggregation, PairwiseAggregation
from bilateral.learning.uploading import AddPairwise, MaskUploader, PairwiseUploader
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.combination import Combination, combine, spoken
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.float_masks import FloatMaskClient
from bilateral.protocols.mask.guarantee import float_mask_guarantee
from bilateral.protocols.mask.guarantee import guarantee as mask_guarantee
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.settings import Loss

CLOSED_BY_MASKS = ((0, "server"), (3, "server"))
"""Ledger lines about single uploads, which the server no longer sees as they are."""


@dataclass(frozen=True)
class Stack:
    """A plan's protections: what they promise, and how to build each side of them."""

    name: str
    make_server: Callable[[nn.Module], ServerHalf]
    make_aggregation: Callable[[], Aggregation]
    make_client: Callable[[Seat], ClientParts]
    make_uploader: Callable[[str, ClientParts], Uploader]
    guarantee: Guarantee
    weight: int | None = None
    """The clients' weight in the average; None is the number of their samples."""
    privacy: PrivacyReport | None = None
    check: RecoveryCheck | None = None


def combination_of(plan: RunPlan, loss: Loss, num_clients: int, graph: ScaleGraph) -> Combination:
    """The plan's stack, checked."""
    chosen = Combination(
        perturbed=plan.protection == "perturbation",
        loss=loss,
        masks=plan.masks(num_clients),
        mechanism=plan.noise.mechanism,
        num_participants=plan.federation.num_participants(num_clients),
        num_statistics=graph.num_statistics,
    )
    chosen.refuse_unsound()
    return chosen


def make_stack(around: Surroundings) -> Stack:
    """Everything that the plan asks for; nothing of a side is built yet."""
    chosen = combination_of(around.plan, around.problem.loss, len(around.members), around.graph)
    layer = LAYERS[chosen.mechanism](around)
    if layer.pairwise is not None:
        return _with_pairwise_noise(chosen.name, layer, layer.pairwise, around)
    match chosen.masks:
        case "ring":
            return _with_ring_masks(chosen.name, layer, around)
        case "float":
            return _with_float_masks(chosen.name, layer, around)
        case "none":
            shape = replace(layer.shape, weight=layer.weight)
            return _stack(chosen.name, layer, lambda: PlainAggregation(shape), lambda name, parts: PlainUploader())  # noqa: ARG005


def _without_noise(around: Surroundings) -> Layer:
    return perturbed_layer(around) if around.plan.protection == "perturbation" else plain_layer(around)


LAYERS: dict[str, Callable[[Surroundings], Layer]] = {
    "none": _without_noise,
    "sound": sound_layer,
    "published": published_layer,
    "mp-cdp": mp_cdp_layer,
    "mp-dp-naive": mp_dp_naive_layer,
}


def _with_ring_masks(name: str, layer: Layer, around: Surroundings) -> Stack:
    settings, secrets = mask_settings(around), around.secrets

    def make_aggregation() -> Aggregation:
        run_id = secrets.run_id
        server = MaskServer(run_id, around.names, settings, layer.fixed_bounds, pinned=secrets.pinned())
        aggregation = MaskedAggregation(server, run_id, around.names, layer.shape)
        return AdaptiveAggregation(aggregation, layer.make_adaptive()) if layer.make_adaptive else aggregation

    def make_uploader(client: str, parts: ClientParts) -> Uploader:
        ring = secrets.key_ring(client)
        masks = MaskClient(
            ring,
            settings,
            secrets.stream("masks", client),
            fixed_bounds=layer.fixed_bounds,
            last_bits=secrets.stream("last bits", client),  # the same in every term of a simulation
        )
        return MaskUploader(masks, ring, parts.privatise, parts.set_norm, parts.pay)

    # The question of the published cross entropy has a row a sample.
    asks = around.plan.protection == "perturbation" and around.perturbation.has_exchange
    masked = mask_guarantee(settings, around.num_participants, shows_batch=asks)
    kept = tuple(leak for leak in masked.leaks if leak.ledger_line not in layer.covers)
    layer.guarantees.append(replace(masked, leaks=kept))
    layer.closed.extend(CLOSED_BY_MASKS)
    return _stack(name, layer, make_aggregation, make_uploader)


def _with_float_masks(name: str, layer: Layer, around: Surroundings) -> Stack:
    """The papers' masks: uploads stay visible to line 6, not to line 3."""
    chosen = around.plan.aggregation
    layer.guarantees.append(float_mask_guarantee(chosen.float_scale))
    layer.closed.extend(CLOSED_BY_MASKS)

    def pairwise(ring: KeyRing) -> AddPairwise:
        return FloatMaskClient(ring, chosen.float_scale, chosen.settings()).mask

    return _with_pairwise_noise(name, layer, pairwise, around)


def _with_pairwise_noise(
    name: str, layer: Layer, pairwise: Callable[[KeyRing], AddPairwise], around: Surroundings
) -> Stack:
    """Real-valued noise that cancels between clients: float masks and P2's."""
    secrets = around.secrets

    def make_uploader(client: str, parts: ClientParts) -> Uploader:  # noqa: ARG001
        ring = secrets.key_ring(client)
        return PairwiseUploader(ring, pairwise(ring))

    def make_aggregation() -> Aggregation:
        shape = replace(layer.shape, weight=layer.weight)
        # P2's noise is measured out for all of them; masks are not.
        masks_alone = layer.pairwise is None
        return PairwiseAggregation(secrets.run_id, around.names, shape, secrets.pinned(), goes_on_without=masks_alone)

    return _stack(name, layer, make_aggregation, make_uploader)


def _stack(
    name: str,
    layer: Layer,
    make_aggregation: Callable[[], Aggregation],
    make_uploader: Callable[[str, ClientParts], Uploader],
) -> Stack:
    return Stack(
        name,
        layer.make_server,
        make_aggregation,
        layer.make_client,
        make_uploader,
        combine(spoken(name), layer.guarantees, layer.closed),
        layer.weight,
        layer.privacy,
        layer.check,
    )
