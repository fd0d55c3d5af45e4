"""The handbook of a deployed service: a `README.md` beside its kits."""

from __future__ import annotations

from collections.abc import Mapping

from bilateral.serving.hosted.plan import ServingPlan

_TEMPLATE = """\
# Service {name}

The model of the run `{run}` answers {clients}, who do not get it; {dealer} deals.

Plan: `{plan_file}`. Its fingerprint, which all operators compare by telephone before they start:

    {fingerprint}

## What this service does not hide

{warnings}

## Who gets what

| directory | to whom |
|---|---|
{parties}

Everything here is secret. Hand a kit to its party only, over a channel that both ends trust, and delete the copy of its
`identity.key` here: with the dealer's and a client's in one hand, that client's questions can be read.

## At the server ({server}, port {port})

1. Install `bilateral[flare]` {version}. Put the run's directory into `runs/{run}` of the kit, if it was not trained
   there, and test data of your own where `[data]` in `bilateral.toml` says.
2. `flare/startup/start.sh`.

Keep `spent/`: it counts every client's questions to this run, in all services of it. A count that is missing is spent.

## At {dealer}

Install the same version, compare the fingerprint, and start the kit with `flare/startup/start.sh`. That is all: it
deals whenever it is asked. It must belong to neither a client nor the server.

## At each client

The same; and, while the service is under way, in the environment of that kit:

    bilateral ask KIT --inputs mine.npy --output answers.csv

Inputs and answers stay in that command's process: what runs in the kit carries messages.

## Begin, look, stop, go on

    bilateral submit {admin} {plan_file} --name service      # from the administrator's machine
    bilateral watch runs/service                             # in the server's kit, at the server

Ctrl-C in `submit` lets the questions under way come to their end and stops; the same command with `--resume` goes on.
Who comes late is taken in: the service begins a new term, and `bilateral ask --resume` goes on after its last answer.
"""


def serving_handbook(plan: ServingPlan, places: Mapping[str, str]) -> str:
    """The text for the operators of these kits."""
    kits = places["kits"]
    rows = [
        (places["server_kit"], "the operator of the server, who has the model"),
        *((f"{kits}/{name}", f"the operator of {name}, who asks") for name in plan.clients),
        (f"{kits}/{plan.dealer}", f"the operator of {plan.dealer}, who deals: a third party"),
        (places["admin"], "whoever may start and stop the service"),
    ]
    return _TEMPLATE.format(
        **places,
        run=plan.run,
        clients=", ".join(plan.clients),
        dealer=plan.dealer,
        parties="\n".join(f"| `{kit}` | {whom} |" for kit, whom in rows),
    )
