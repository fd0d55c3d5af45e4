"""Adversaries, and what each of them has: its slice of a run's transcript, and what it knows by itself.

| adversary         | messages                           | knows besides                                     |
|-------------------|------------------------------------|---------------------------------------------------|
| curious client    | what it sent and received          | its own data and batches                          |
| colluding clients | what any of them sent and received | their data and batches                            |
| curious server    | all that passes it: everything     | its model, its secrets, the sums that it unmasked |
| server + clients  | everything                         | both of the above                                 |
| dishonest server  | everything, and what it provokes   | the same as the curious server                    |
| eavesdropper      | everything, where there is no TLS  | nothing                                           |

The querying and the answering party of secret-shared prediction are in `shared_recording`.

All adversaries know what is public: the plan without its seed, the architecture, who takes part. Everything in a
simulation follows from the seed, so no view has it (test_no_view_has_the_seed_or_anothers_data).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from bilateral.audit.recording import Recording
from bilateral.audit.views import HIDDEN_SEED, Facts, View
from bilateral.data import Split
from bilateral.protocols.transport import SERVER


def client_view(recording: Recording, *clients: str) -> View:
    """One curious client, or several that pool what they have."""
    _expect_clients(recording, clients)
    entries = [e for e in recording.transcript.entries if e.sender in clients or e.receiver in clients]
    return View(
        "curious client" if len(clients) == 1 else "colluding clients",
        clients,
        facts_of(recording),
        tuple(entries),
        {name: recording.shares[name] for name in clients},
        _batches_of(recording, clients),
    )


def server_view(recording: Recording, colluding: Sequence[str] = ()) -> View:
    """The curious server, alone or with clients that tell it what they know."""
    _expect_clients(recording, colluding)
    return View(
        "server with colluding clients" if colluding else "curious server",
        (SERVER, *colluding),
        facts_of(recording),
        tuple(e for e in recording.transcript.entries if SERVER in (e.sender, e.receiver)),
        {name: recording.shares[name] for name in colluding},
        _batches_of(recording, colluding),
        recording.server_rounds,
    )


def eavesdropper_view(recording: Recording) -> View:
    """Somebody on the wire where transport is not encrypted."""
    return View("eavesdropper", (), facts_of(recording), tuple(recording.transcript.entries))


def facts_of(recording: Recording) -> Facts:
    """What is public; the architecture comes with zeros for weights."""
    blank = copy.deepcopy(recording.initial)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.zero_()
    problem = recording.problem
    return Facts(
        recording.plan.with_settings({"seed": HIDDEN_SEED}),
        problem.plain_loss,
        problem.input_shape,
        problem.num_outputs,
        tuple(recording.shares),
        recording.graph,
        blank,
    )


def _batches_of(recording: Recording, clients: Sequence[str]) -> dict[tuple[str, int], Split]:
    return {key: batch for key, batch in recording.batches.items() if key[0] in clients}


def _expect_clients(recording: Recording, clients: Sequence[str]) -> None:
    strangers = [name for name in clients if name not in recording.shares]
    if strangers:
        raise KeyError(f"{', '.join(strangers)}: no client of this run; they are {', '.join(recording.shares)}")
