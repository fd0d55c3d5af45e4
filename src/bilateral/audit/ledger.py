"""The lines of docs/leakage-ledger.md as the audit needs them: what the papers say, and which setting closes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LedgerLine:
    """`paper`: who claims the opposite, if anybody; `said`: in which words. `closed_by`: a setting, or why none."""

    number: int
    leak: str
    paper: str
    said: str
    closed_by: str


_NOBODY = ""
_NO_EXCHANGE = 'perturbation.softmax = "local" (the default), or training.loss = "mse": there is no exchange then'
_LINES = (
    LedgerLine(
        0,
        "the model to clients, each gradient to the server",
        _NOBODY,
        "this is FedSGD without protection",
        'protection = "perturbation" and aggregation.masks = "ring", as far as the other lines go',
    ),
    LedgerLine(
        1,
        "the function that the model computes",
        "P0, P1, P3",
        "clients get a true prediction with probability at most 1/m (P0 lemma 7, P3 theorem 5), so that membership "
        "inference and model inversion by clients fail",
        'nothing: a perturbed model computes the same function; noise.mechanism = "sound" bounds what the function '
        "tells about one sample",
    ),
    LedgerLine(
        2,
        "every true softmax, to the client whose sample it is",
        "P0, P3",
        "the cross-entropy exchange shows clients blinded values alone",
        'training.loss = "mse"',
    ),
    LedgerLine(
        3,
        "a client's upload, which is its gradient in disguise",
        "P2",
        "uploads of MP_Server/DDP_Client reveal nothing about a client's data to the server",
        'aggregation.masks = "ring" (the default); not available for noise.mechanism = "published"',
    ),
    LedgerLine(
        4,
        "each client's gradient under P2's noise",
        "P2",
        "the noisy gradient is (epsilon, delta)-differentially private against the server",
        'noise.mechanism = "sound"',
    ),
    LedgerLine(
        5,
        "signs (published) or sizes (hardened) of activations, where comparisons are judged",
        "P4",
        "the querying party learns nothing but the prediction",
        'style = "sealed" (the default) closes it; "hardened" closes signs, places and factors, and sizes remain',
    ),
    LedgerLine(
        6,
        "uploads under real-valued masks",
        "P0, P1",
        "an upload with a zero-sum mask looks uniformly random to the server (P0 lemma 8)",
        'aggregation.masks = "ring" (the default)',
    ),
    LedgerLine(
        7,
        "what scaling and permutation leave alone: path products, directions of first-layer neurons",
        "P0, P1, P2, P3",
        "clients learn nothing about the parameters from the perturbed ones",
        "nothing; perturbation.permute = true (the default) hides which place a neuron had",
    ),
    LedgerLine(
        8,
        "the softmax of every training sample, to the server",
        "P0, P3",
        "the query of the cross-entropy exchange is blinded",
        _NO_EXCHANGE,
    ),
    LedgerLine(
        9,
        "factors of parameters whose true value, or size, a client can know",
        "P0, P1, P2, P3",
        "clients learn nothing about the parameters from the perturbed ones",
        "nothing; in a deployment initial weights are the server's own secret",
    ),
    LedgerLine(
        10,
        "the sum of every training sample's head inputs, to the server",
        _NOBODY,
        "the papers send it in the clear",
        _NO_EXCHANGE + '; in the exchange, perturbation.noise = "offset"',
    ),
    LedgerLine(
        11,
        "the size of an upload that does not fit its range",
        _NOBODY,
        "the papers have no ranges",
        'noise.mechanism = "sound", whose ranges are fixed',
    ),
    LedgerLine(
        12,
        "the sum, who takes part and who drops out",
        _NOBODY,
        "the sum is what the server is for",
        'noise.mechanism = "sound" bounds what it tells about one sample or client; more clients blur it',
    ),
    LedgerLine(
        13,
        "architectures, and who asks whom how often",
        _NOBODY,
        "P4 takes them to be public",
        "nothing",
    ),
    LedgerLine(
        14,
        "the sum of the logits that a querying party asked for",
        _NOBODY,
        "the answer is what the protocol is for",
        "nothing; fewer queries, and more answering clients",
    ),
    LedgerLine(
        15,
        "the values of the parameters, to some percent",
        "P0, P1, P2, P3",
        "clients cannot get the true parameters from the perturbed ones (this project said so too, until its audit)",
        "nothing known",
    ),
    LedgerLine(
        16,
        "one training sample's gradient a round, out of the sum, to a server that chooses its blinders",
        "P0, P3",
        "a server that sees sums alone learns nothing about one client's data (the papers' server draws its blinders)",
        _NO_EXCHANGE,
    ),
    LedgerLine(
        17,
        "sealed training: what is public, and what two parties learn that tell each other what they know",
        _NOBODY,
        "no paper here has it",
        "a dealer of its own (federation.dealer) that tells nobody anything",
    ),
    LedgerLine(
        18,
        "samples out of a sum, to a server that crafts the model, or sends clients different ones",
        _NOBODY,
        "the server is taken to follow the protocol",
        'noise.mechanism = "sound" bounds what a sum tells of a sample (not with sealed training); large sums blur it',
    ),
    LedgerLine(
        19,
        "single uploads under sums of ciphertexts, to a server with the dealer or enough clients, or that mixes them",
        "Truex et al., Xu et al.",
        "the server decrypts the sum of the uploads alone",
        'aggregation.masks = "ring": keys of pairs that nobody deals, for every round its own',
    ),
    LedgerLine(
        20,
        "each site's metrics on samples that it keeps back, to the server",
        _NOBODY,
        "the plan asks for it",
        'evaluation.site_metrics = "stay" (the default)',
    ),
)
SEALED_LINE: Final = 17
CRAFTED_LINE: Final = 18
METRICS_LINE: Final = 20
LEDGER: Final = {line.number: line for line in _LINES}
