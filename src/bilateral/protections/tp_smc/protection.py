"""TP-SMC: clipped, noisy uploads under threshold Paillier. Its settings are `[tp-smc]`."""

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
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.threshold_paillier import LEAST_KEY_BITS, ThresholdPaillier
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

TP_SMC: Final = "tp-smc"


class TpSmcSettings(Section):
    """`epsilon`: of one round, as published (the classic bound, which is none beyond 8); none adds no noise.

    `honest`: fraction of clients that are taken to be.
    """

    epsilon: float | None = Field(default=3.0, gt=0, le=8)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    honest: float = Field(default=0.5, gt=0, lt=1)
    key_bits: int = Field(default=LEAST_KEY_BITS, ge=LEAST_KEY_BITS, le=8192, multiple_of=16)
    fraction_bits: int = Field(default=20, ge=8, le=40)
    bound_bits: int = Field(default=4, ge=0, le=20)


class TpSmc(FedSgdVariant):
    """Everyone sees the model, and the server noisy sums that enough clients open for it."""

    name = TP_SMC
    settings = TpSmcSettings
    vocabulary = spoken_as("TP-SMC")
    baseline_of = "P2, tables 1 to 5"
    refused = (ALONE,)

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False, sums_ciphertexts=True, equal_weights=True, replies_in_a_round=NUM_REPLIES)

    def guarantee(self, around: Groundwork) -> Guarantee:
        settings = _settings(around)
        count = ThresholdPaillier(1, honest=settings.honest).num_helpers(len(around.members))
        claims = (
            Claim(
                "single uploads",
                "a client's upload, beyond the sum that it is in",
                "server",
                f"the server follows the protocol; fewer than {count} clients, and not the dealer, tell it what they "
                f"have; Paillier with {settings.key_bits} bits",
            ),
        )
        leaks = (
            Leak("the whole model", "clients", 0),
            OF_SUMS,
            Leak(f"every upload: {count} shares open it, and so does the dealer", "server with those", LINE),
        )
        return Guarantee("TP-SMC", claims, leaks)

    def sides(self, around: Groundwork) -> Sides:
        settings, count = _settings(around), len(around.members)
        form = IntegerFormat(settings.fraction_bits, settings.bound_bits, count)
        system = ThresholdPaillier(form.bits, settings.key_bits, settings.honest)
        noise = DividedNoise(settings.clip, settings.epsilon, settings.delta, system.num_honest(count))
        clip = noise.settings(around)

        def make_client(seat: Seat) -> ClientParts:
            half = DividedNoiseClient(around.basis(seat), clip, noise.deviation(clip))
            return ClientParts(half, around.batch_schedule(seat))

        sides = replace(super().sides(around), make_client=make_client, weight=1)
        return EncryptedSums(around, system, form, dict.fromkeys(around.names, 1)).on(sides)

    def make_client(self, basis: ClientBasis) -> DividedNoiseClient:
        raise NotImplementedError("how much noise a client adds depends on who else there is: `sides` makes it")

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "TP-SMC's epsilon is of one round and is not composed over rounds; its dealer can open every upload (line "
            "19), and every site sees the whole model."
        )


def _settings(around: Groundwork) -> TpSmcSettings:
    return cast("TpSmcSettings", around.plan.own_settings(TP_SMC))
