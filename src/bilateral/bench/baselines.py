"""`bench baselines`: schemes of others beside FedSGD and perturbation, in one process.

Two parts. *Whole runs* on digits, in lockstep with FedSGD: everything happens, every value is encrypted; accuracy,
seconds of a round and bytes are of the same rounds. *One sum of ResNet-20's gradients* from five clients, for the
cryptosystems: a stated number of values is encrypted, added and opened by real keys, and the seconds are multiplied up
to all of them. A client's work is that of one client, the server's that of all; the rows say from how many values they
were extrapolated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from bilateral.bench.bed import make_model
from bilateral.engine.plan import RunPlan
from bilateral.protections.registry import baseline_names
from bilateral.protocols.ciphers.cryptosystem import Cryptosystem
from bilateral.protocols.ciphers.exact_ckks import BITS, ExactCkks
from bilateral.protocols.ciphers.inner_products import InnerProducts
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.threshold_paillier import ThresholdPaillier
from bilateral.protocols.perturb.scheme import term_names
from bilateral.randomness import SecureRandomness
from bilateral.runs.rounds.compare import compare

NUM_CLIENTS: Final = 5
LARGE: Final = "resnet-20"
INPUTS: Final = (3, 32, 32)
BATCH_SIZE: Final = 256
EPOCH_STEPS: Final = 40
"""Of P2: 50,000 images, 5 clients, batches of 256."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class SumOfLarge:
    """A cryptosystem as a baseline uses it on a large model. `sample`: values that are really encrypted."""

    protection: str
    system: Cryptosystem
    bits: int
    num_terms: int
    sample: int


@dataclass(frozen=True)
class Workload:
    """What is summed once an epoch: a network's gradients, beside so many plain steps of so many seconds."""

    model: str
    parameters: int
    step_seconds: float
    epoch_steps: int
    num_clients: int


def measure_baselines(quick: bool, progress: Progress) -> list[dict[str, Any]]:
    """Rows of both parts; quick runs are of few rounds, so that their accuracies say nothing."""
    sums = sums_of_baselines(NUM_CLIENTS)
    rows = _whole_runs(quick, lambda done, total: progress(done, total + len(sums), "whole runs in lockstep"))
    step = _plain_step(1 if quick else 3)
    parameters = sum(p.numel() for p in _large_model().parameters())
    given = Workload(LARGE, parameters, step, EPOCH_STEPS, NUM_CLIENTS)
    for number, one in enumerate(sums):
        progress(number, len(sums), f"a sum under {one.protection}")
        rows.append(one_sum(one, given, 1 if quick else 3))
    return rows


def small_plan(rounds: int) -> RunPlan:
    """Digits on a small network: what all of them can really run."""
    return RunPlan().with_settings(
        {
            "data.name": "digits",
            "model.name": "mlp-3",
            "model.options": {"width": 8},
            "federation.clients": NUM_CLIENTS,
            "training.rounds": rounds,
            "training.learning_rate": 0.05,
        }
    )


def _whole_runs(quick: bool, progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
    plan = small_plan(2 if quick else 30)
    found = compare(plan, ["perturbation+masks", *baseline_names()], num_controls=0, on_round=progress)
    return [
        {
            "part": "whole run",
            "protection": row["protection"],
            "model": "mlp-3",
            "accuracy": row["metric_value"],
            "seconds_ratio": row["seconds_ratio"],
            "bytes_ratio": row["bytes_ratio"],
        }
        for row in found
    ]


def sums_of_baselines(num_clients: int) -> Sequence[SumOfLarge]:
    """As the protections set them up by default."""
    noisy = IntegerFormat(20, 4, num_clients)
    counts = IntegerFormat(28, 12, 50_000)
    small = IntegerFormat(14, 2, num_clients)
    terms = len(term_names(RunPlan().perturbation.settings("ce")))
    return (
        SumOfLarge("ckks", ExactCkks(), BITS, 1, 32_768),
        SumOfLarge("tp-smc", ThresholdPaillier(noisy.bits), noisy.bits, 1, 1_136),
        SumOfLarge("pile", ThresholdPaillier(counts.bits), counts.bits, terms, 512),
        SumOfLarge("hybrid-alpha", InnerProducts(small.bits), small.bits, 1, 256),
    )


def one_sum(one: SumOfLarge, given: Workload, repeats: int) -> dict[str, Any]:
    """Seconds of one encrypted sum, with what was measured multiplied up."""
    step, num_steps = given.step_seconds, given.epoch_steps
    names = tuple(f"client-{k}" for k in range(given.num_clients))
    started = time.perf_counter()
    dealt = one.system.deal(names, SecureRandomness())
    dealing = time.perf_counter() - started
    holders = {n: one.system.holder(n, dealt.public, dealt.private[n], SecureRandomness()) for n in names}
    opener = one.system.opener(dealt.public)
    draws, limit = np.random.default_rng(0), 2 ** (one.bits - 2 - given.num_clients.bit_length())
    values = {name: draws.integers(-limit, limit, one.sample) for name in names}
    ciphertexts = {name: holders[name].encrypt(values[name]) for name in names}  # tables are made here
    client, server = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        ciphertexts[names[0]] = holders[names[0]].encrypt(values[names[0]])
        encrypting = time.perf_counter() - started
        started = time.perf_counter()
        for name in names:
            opener.check(ciphertexts[name], one.sample, name)
        request = opener.request(ciphertexts)
        adding = time.perf_counter() - started
        asked = names[: one.system.num_helpers(given.num_clients)]
        started = time.perf_counter()
        if one.system.dealer_opens:
            parts = {"the authority": one.system.master(dealt.public, dealt.master).help_open(request)}
        else:
            parts = {name: holders[name].help_open(request) for name in asked}
        helping = (time.perf_counter() - started) / max(1, len(asked))
        started = time.perf_counter()
        total = opener.open(ciphertexts, request, parts, one.sample)
        opening = time.perf_counter() - started
        right = np.sum(list(values.values()), axis=0)
        assert np.array_equal(total, right), "a sum that is wrong measures nothing"
        client.append(encrypting + helping)
        server.append(adding + opening)
    count = one.num_terms * given.parameters
    scale = count / one.sample
    of_client, of_server = scale * statistics.median(client), scale * statistics.median(server)
    return {
        "part": "one sum",
        "protection": one.protection,
        "model": given.model,
        "values": count,
        "measured_values": one.sample,
        "extrapolated": True,
        "client_seconds": of_client,
        "server_seconds": of_server,
        "dealing_seconds": dealing,
        "plain_step_seconds": step,
        "round_ratio": (step + of_client + of_server) / step,
        "epoch_ratio": (num_steps * step + of_client + of_server) / (num_steps * step),
        "upload_bytes": scale * len(ciphertexts[names[0]]),
        "upload_ratio": scale * len(ciphertexts[names[0]]) / (4 * given.parameters),
    }


def _large_model() -> torch.nn.Module:
    return make_model(LARGE, torch.float32, {}, INPUTS)


def _plain_step(repeats: int) -> float:
    """A client's step of FedSGD on a batch as P2 has it."""
    model = _large_model()
    inputs, targets = torch.randn(BATCH_SIZE, *INPUTS), torch.randint(0, 10, (BATCH_SIZE,))
    seconds = []
    for _ in range(repeats + 1):  # the first one warms up
        started = time.perf_counter()
        torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
