"""What the rest of the package asks of a plan's protections, in place of their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MaskName = Literal["ring", "float", "none"]


@dataclass(frozen=True)
class Traits:
    """Of all protections of a plan together. The lines are of docs/leakage-ledger.md."""

    needs_trace: bool = True
    """The network is traced, and its scale graph is there; without, it may be any module (`ModelLayout`)."""
    hides_model: bool = False
    """Clients are sent a perturbed model (`PerturbedModel`), not the parameters as they are."""
    computes_on_shares: bool = False
    """Gradients are computed on shares between each client and the server, with the help of a dealer: clients are sent
    no model at all, and upload ring words."""
    sums_ciphertexts: bool = False
    """Uploads are encrypted under keys that somebody deals, and added up unread: no masks go on top."""
    model_line: int = 0
    """The line about what a client makes of the models that it is sent."""
    upload_line: int = 0
    """The line about what the server makes of a single upload that nothing masks."""
    default_masks: MaskName = "none"
    """What `aggregation.masks = "auto"` means with two or more clients a round."""
    adds_noise: bool = False
    """Something stays in the sums that is not the clients' gradients; with a claim on epsilon."""
    spends_budget: bool = False
    """That claim is of the whole run and holds against everybody: clients clip, what they draw is a secret, they count
    their rounds, and nothing without noise may lie beside the run."""
    samples_by_chance: bool = False
    """Whether a sample is in a batch is drawn for itself (Poisson), which the accounting counts on."""
    needs_sample_counts: bool = False
    """Every client tells everyone how many samples it has."""
    needs_full_sum: bool = False
    """Noise cancels only if everybody who was invited sends an upload."""
    equal_weights: bool = False
    """Every client's weight in the average is 1, and not the number of its samples."""
    expands_network: bool = False
    """Clients train another network than the plan's."""
    replies_in_a_round: int = 4
    """Simulated deaths come before any of so many replies of a client: shares, upload, signature, reveal."""
    noise_line: int | None = None
    """The line about the noise itself, if it has one besides its claim."""
