"""HybridAlpha: clipped, noisy uploads under functional encryption of inner products. Its settings are `[hybrid-alpha]`.

Its authority should be a party of its own (`federation.dealer = "NAME"`); else the first client is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from pydantic import Field

from bilateral.protections.divided_noise import DividedNoise, DividedNoiseClient
from bilateral.protections.encrypted_sums import ALONE, LINE, NUM_REPLIES, OF_SUMS, EncryptedSums, spoken_as
from bilateral.protections.fedavg.variant import FedSgdVariant
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.sections import Section
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protections.traits import Traits
from bilateral.protocols.ciphers.inner_products import InnerProducts
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.guarantee import Guarantee, Leak

HYBRID_ALPHA: Final = "hybrid-alpha"


class HybridAlphaSettings(Section):
    """`epsilon`: of one round, as published (the classic bound, which is none beyond 8); none adds no noise.

    `honest`: fraction of clients that are taken to be.
    """

    epsilon: float | None = Field(default=3.0, gt=0, le=8)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    honest: float = Field(default=0.5, gt=0, lt=1)
    fraction_bits: int = Field(default=14, ge=6, le=24)
    bound_bits: int = Field(default=2, ge=0, le=8)


class HybridAlpha(FedSgdVariant):
    """Everyone sees the model; the server opens noisy sums with a key from an authority."""

    name = HYBRID_ALPHA
    settings = HybridAlphaSettings
    vocabulary = spoken_as("HybridAlpha")
    baseline_of = "P2, tables 1 to 5"
    refused = (ALONE,)

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False, sums_ciphertexts=True, equal_weights=True, replies_in_a_round=NUM_REPLIES)

    def guarantee(self, around: Groundwork) -> Guarantee:
        who = around.named_dealer or "the client that is the authority"
        leaks = (
            Leak("the whole model", "clients", 0),
            OF_SUMS,
            Leak("every upload, up to one number that is the same for all its values", "server", LINE),
            Leak("every upload", f"server with {who}", LINE),
        )
        return Guarantee("HybridAlpha", (), leaks)

    def sides(self, around: Groundwork) -> Sides:
        settings, count = cast("HybridAlphaSettings", around.plan.own_settings(self.name)), len(around.members)
        form = IntegerFormat(settings.fraction_bits, settings.bound_bits, count)
        honest = max(2, int(settings.honest * count) + 1)
        noise = DividedNoise(settings.clip, settings.epsilon, settings.delta, honest)
        clip = noise.settings(around)

        def make_client(seat: Seat) -> ClientParts:
            half = DividedNoiseClient(around.basis(seat), clip, noise.deviation(clip))
            return ClientParts(half, around.batch_schedule(seat))

        sides = replace(super().sides(around), make_client=make_client, weight=1)
        return EncryptedSums(around, InnerProducts(form.bits), form, dict.fromkeys(around.names, 1)).on(sides)

    def make_client(self, basis: ClientBasis) -> DividedNoiseClient:
        raise NotImplementedError("how much noise a client adds depends on who else there is: `sides` makes it")

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "HybridAlpha's ciphertexts can be mixed: the server reads every upload up to one number (line 19). Its "
            "epsilon is of one round, and every site sees the whole model."
        )
