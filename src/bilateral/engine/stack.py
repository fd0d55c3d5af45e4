"""From a plan to a stack of protections, checked, with the recipe for each side.

perturbation (or the plain model)  ->  clipping and noise  ->  masks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from bilateral.engine.plan import RunPlan
from bilateral.errors import UnsoundPlanError
from bilateral.learning.adaptive_aggregation import AdaptiveAggregation
from bilateral.learning.aggregation import Aggregation, PlainAggregation
from bilateral.learning.client import PlainUploader, Uploader
from bilateral.learning.exchange import Party
from bilateral.learning.halves import GradientCheck, ServerHalf
from bilateral.learning.masked_aggregation import MaskedAggregation, PairwiseAggregation
from bilateral.learning.uploading import AddPairwise, MaskUploader, PairwiseUploader, PrivateUploader
from bilateral.models.layout import ModelLayout
from bilateral.protections.base import Mix
from bilateral.protections.combination import combine, name_of, refuse_unsound
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.registry import spoken
from bilateral.protections.sides import ClientParts, Seat, Sides, Summing
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.float_masks import FloatMaskClient
from bilateral.protocols.mask.guarantee import float_mask_guarantee
from bilateral.protocols.mask.guarantee import guarantee as mask_guarantee
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.objective import Objective

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
    term_scales: tuple[float, ...] = ()
    check: GradientCheck | None = None
    helpers: Mapping[str, Callable[[KeyRing], Party]] = field(default_factory=dict)


def checked_mix(plan: RunPlan, objective: Objective, num_clients: int, layout: ModelLayout) -> Mix:
    """The plan's protections, which go together."""
    chosen = plan.chosen
    mix = Mix(
        chosen.model,
        chosen.noise,
        objective,
        plan.masks(num_clients),
        plan.federation.num_participants(num_clients),
        layout.num_statistics,
        plan.training.takes_local_steps,
        plan.noise.unit,
        chosen.model.asks(plan, objective.name),
        tuple(layer.module for layer in layout.statistics if layer.tracked),
    )
    refuse_unsound(mix)
    return mix


def make_stack(plan: RunPlan, around: Groundwork) -> Stack:
    """Everything that the plan asks for; nothing of a side is built yet."""
    mix = checked_mix(plan, around.problem.objective, len(around.members), around.layout)
    name, sides = name_of(mix), plan.chosen.sides(around)
    _refuse_what_would_be_left_out(mix, sides)
    if sides.pairwise is not None:
        return _with_pairwise_noise(name, sides, sides.pairwise, around)
    if sides.summing is not None:
        return _with_own_sums(name, sides, sides.summing)
    match mix.masks:
        case "ring":
            return _with_ring_masks(name, sides, around)
        case "float":
            return _with_float_masks(name, sides, around)
        case "none":
            shape = replace(sides.shape, weight=sides.weight)
            return _stack(name, sides, lambda: PlainAggregation(shape), lambda name, parts: PlainUploader())  # noqa: ARG005


def _refuse_what_would_be_left_out(mix: Mix, sides: Sides) -> None:
    """Whatever its own rules say: a protection of which a part would not be built claims what it does not do."""
    if sides.pairwise is not None and mix.masks != "none":
        raise UnsoundPlanError(
            f"Refused, noise between clients under masks: {name_of(mix)} would have the noise and no masks.",
            remedy="Use aggregation.masks = 'none', or noise that is not between clients.",
        )
    if sides.summing is not None and (mix.masks != "none" or sides.pairwise is not None):
        raise UnsoundPlanError(
            f"Refused, masks over uploads that are summed in another way: {name_of(mix)} would not have the masks.",
            remedy="Use aggregation.masks = 'none' (or 'auto', which is that).",
        )
    if (sides.words or sides.helpers) and mix.masks != "ring" and sides.summing is None:
        raise UnsoundPlanError(
            f"Refused, ring words without ring masks: {name_of(mix)} would upload what nobody can read.",
            remedy="Use aggregation.masks = 'ring'.",
        )
    if sides.make_adaptive is not None and mix.masks != "ring":
        raise UnsoundPlanError(
            f"Refused, adaptive clipping without ring masks: nobody would tell clients their norm in {name_of(mix)}.",
            remedy="Use aggregation.masks = 'ring', or a clipping norm that stays.",
        )


def _with_own_sums(name: str, sides: Sides, summing: Summing) -> Stack:
    """What the protection brings itself, and no masks."""
    return _stack(name, sides, summing.make_aggregation, lambda client, parts: summing.make_uploader(client))  # noqa: ARG005


def _with_ring_masks(name: str, sides: Sides, around: Groundwork) -> Stack:
    settings, secrets = sides.mask_settings(around.mask_settings), around.secrets

    def make_aggregation() -> Aggregation:
        run_id = secrets.run_id
        helpers = tuple(sides.helpers)
        everyone = [*around.names, *helpers]
        server = MaskServer(run_id, everyone, settings, sides.fixed_bounds, pinned=secrets.pinned(), words=sides.words)
        aggregation = MaskedAggregation(server, run_id, around.names, sides.shape, helpers=helpers)
        return AdaptiveAggregation(aggregation, sides.make_adaptive()) if sides.make_adaptive else aggregation

    def make_uploader(client: str, parts: ClientParts) -> Uploader:
        ring = secrets.key_ring(client)
        masks = MaskClient(
            ring,
            settings,
            secrets.stream("masks", client),
            fixed_bounds=sides.fixed_bounds,
            last_bits=secrets.stream("last bits", client),  # the same in every term of a simulation
            words=sides.words,
            keeps_on_disk=parts.shares_process,
        )
        return MaskUploader(masks, ring, parts.set_norm, parts.opened, parts.agreed)

    # The question of the published cross entropy has a row a sample.
    asks = around.plan.chosen.asks(around.problem.loss)
    masked = mask_guarantee(settings, around.num_participants, shows_batch=asks)
    kept = tuple(leak for leak in masked.leaks if leak.ledger_line not in sides.covers)
    return _stack(name, sides, make_aggregation, make_uploader, replace(masked, leaks=kept))


def _with_float_masks(name: str, sides: Sides, around: Groundwork) -> Stack:
    """The papers' masks: uploads stay visible to line 6, not to line 3."""
    chosen = around.plan.aggregation

    def pairwise(ring: KeyRing) -> AddPairwise:
        return FloatMaskClient(ring, chosen.float_scale, chosen.settings()).mask

    return _with_pairwise_noise(name, sides, pairwise, around, float_mask_guarantee(chosen.float_scale))


def _with_pairwise_noise(
    name: str,
    sides: Sides,
    pairwise: Callable[[KeyRing], AddPairwise],
    around: Groundwork,
    of_masks: Guarantee | None = None,
) -> Stack:
    """Real-valued noise that cancels between clients: float masks and P2's."""
    secrets = around.secrets

    def make_uploader(client: str, parts: ClientParts) -> Uploader:  # noqa: ARG001
        ring = secrets.key_ring(client)
        return PairwiseUploader(ring, pairwise(ring))

    def make_aggregation() -> Aggregation:
        shape = replace(sides.shape, weight=sides.weight)
        # P2's noise is measured out for all of them; masks are not.
        masks_alone = sides.pairwise is None
        return PairwiseAggregation(secrets.run_id, around.names, shape, secrets.pinned(), goes_on_without=masks_alone)

    return _stack(name, sides, make_aggregation, make_uploader, of_masks)


def _stack(
    name: str,
    sides: Sides,
    make_aggregation: Callable[[], Aggregation],
    make_uploader: Callable[[str, ClientParts], Uploader],
    of_masks: Guarantee | None = None,
) -> Stack:
    """`of_masks`: what masks on top claim and admit; they close what single uploads would show."""

    def make_private_uploader(client: str, parts: ClientParts) -> Uploader:
        uploader = make_uploader(client, parts)
        if parts.privatise is None and parts.pay is None:
            return uploader
        return PrivateUploader(uploader, parts.privatise, parts.pay)

    guarantees = sides.guarantees if of_masks is None else (*sides.guarantees, of_masks)
    return Stack(
        name,
        sides.make_server,
        make_aggregation,
        sides.make_client,
        make_private_uploader,
        combine(spoken(name), guarantees, () if of_masks is None else CLOSED_BY_MASKS),
        sides.weight,
        sides.privacy,
        sides.term_scales,
        sides.check,
        sides.helpers,
    )
