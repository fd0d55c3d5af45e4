"""Uploads under CKKS: one key for all clients, which open the sum for the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bilateral.protections.encrypted_sums import ALONE, LINE, NUM_REPLIES, OF_SUMS, EncryptedSums, spoken_as
from bilateral.protections.fedavg.variant import FedSgdVariant
from bilateral.protections.groundwork import Groundwork, Plan
from bilateral.protections.sides import Sides
from bilateral.protections.traits import Traits
from bilateral.protocols.ciphers.exact_ckks import BITS, DEGREE, ExactCkks
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

CKKS: Final = "ckks"
BOUND_BITS: Final = 7
"""Values of a gradient beyond 2^7 are refused."""


class Ckks(FedSgdVariant):
    """Everyone sees the model, and the server sums that a client opens for it."""

    name = CKKS
    vocabulary = spoken_as("CKKS")
    baseline_of = "what FLARE's users have"
    refused = (ALONE,)

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(
            needs_trace=False, sums_ciphertexts=True, needs_sample_counts=True, replies_in_a_round=NUM_REPLIES
        )

    def guarantee(self, around: Groundwork) -> Guarantee:  # noqa: ARG002
        claims = (
            Claim(
                "single uploads",
                "a client's upload, beyond the sum that it is in",
                "server",
                "the server follows the protocol; no client (all have the secret key) tells it anything; CKKS with "
                f"{DEGREE} coefficients has 128 bits",
            ),
        )
        leaks = (
            Leak("the whole model", "clients", 0),
            OF_SUMS,
            Leak("every upload: all clients have the key", "server with one client, or with the dealer", LINE),
        )
        return Guarantee("CKKS", claims, leaks)

    def sides(self, around: Groundwork) -> Sides:
        counts = dict(zip(around.names, around.sample_counts, strict=True))
        form = IntegerFormat.as_fine_as(BITS, BOUND_BITS, sum(counts.values()))
        return EncryptedSums(around, ExactCkks(), form, counts).on(super().sides(around))

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield (
            "Under CKKS all sites have one secret key: any of them and the server together read every upload (line "
            "19), and see the whole model."
        )
