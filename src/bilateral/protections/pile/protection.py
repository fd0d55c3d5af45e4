"""PILE: clients train on a perturbed model, and upload under threshold Paillier. Its settings are `[pile]`.

The perturbation is this package's (`[perturbation]`), of the same family (P2 says PILE takes it from [11]). PILE's
proofs that gradients are computed as they should be, which are against clients that do not follow the protocol, are
not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from pydantic import Field

from bilateral.protections.encrypted_sums import ALONE, LINE, NUM_REPLIES, OF_SUMS, VOCABULARY, EncryptedSums
from bilateral.protections.groundwork import Groundwork, Plan
from bilateral.protections.perturbation.protection import Perturbation
from bilateral.protections.sections import Section
from bilateral.protections.sides import Sides
from bilateral.protections.traits import Traits
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.threshold_paillier import LEAST_KEY_BITS, ThresholdPaillier
from bilateral.protocols.guarantee import Claim, Guarantee, Leak

PILE: Final = "pile"
OF_SINGLE_UPLOADS: Final = 3
"""Of the ledger: a disguised gradient that nothing else hides."""


class PileSettings(Section):
    """`honest`: fraction of clients that keep their share of the key to themselves."""

    honest: float = Field(default=0.5, gt=0, lt=1)
    key_bits: int = Field(default=LEAST_KEY_BITS, ge=LEAST_KEY_BITS, le=8192, multiple_of=16)
    fraction_bits: int = Field(default=28, ge=8, le=40)
    bound_bits: int = Field(default=12, ge=0, le=20)


class Pile(Perturbation):
    """Clients see a perturbed model, and the server sums that enough clients open for it."""

    name = PILE
    settings = PileSettings
    vocabulary = replace(VOCABULARY, spoken="PILE")  # and what perturbation speaks
    can_clip = False
    baseline_of = "P2, tables 1 to 5"
    refused = (ALONE,)

    def traits(self, plan: Plan) -> Traits:
        return replace(
            super().traits(plan),
            default_masks="none",
            sums_ciphertexts=True,
            needs_sample_counts=True,
            upload_line=LINE,
            replies_in_a_round=NUM_REPLIES,
        )

    def guarantee(self, around: Groundwork) -> Guarantee:
        settings = cast("PileSettings", around.plan.own_settings(self.name))
        count = ThresholdPaillier(1, honest=settings.honest).num_helpers(len(around.members))
        below = super().guarantee(around)
        claim = Claim(
            "single uploads",
            "a client's upload, beyond the sum that it is in",
            "server",
            f"the server follows the protocol; fewer than {count} clients, and not the dealer, tell it what they have; "
            f"Paillier with {settings.key_bits} bits",
        )
        leaks = tuple(leak for leak in below.leaks if leak.ledger_line != OF_SINGLE_UPLOADS)
        opened = Leak(f"every upload: {count} shares open it, and so does the dealer", "server with those", LINE)
        return Guarantee("PILE", (*below.claims, claim), (*leaks, OF_SUMS, opened))

    def sides(self, around: Groundwork) -> Sides:
        settings = cast("PileSettings", around.plan.own_settings(self.name))
        counts = dict(zip(around.names, around.sample_counts, strict=True))
        form = IntegerFormat(settings.fraction_bits, settings.bound_bits, sum(counts.values()))
        system = ThresholdPaillier(form.bits, settings.key_bits, settings.honest)
        return EncryptedSums(around, system, form, counts).on(super().sides(around))

    def warnings(self, plan: Plan) -> Iterator[str]:
        yield from super().warnings(plan)
        yield "PILE's dealer can open every upload (line 19)."
