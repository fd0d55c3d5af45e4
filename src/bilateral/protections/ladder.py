"""The protections as one setting, from none to both directions: who sees what, and at what cost.

`bilateral run --protection` takes each rung by its name. README, `bilateral ladder`, the help of `--protection`, what a
run prints, an audit's page and docs/leakage.md draw this table; tests hold each of them to it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

from bilateral.protections.registry import word_of


@dataclass(frozen=True)
class Rung:
    """One protection, in plain words."""

    protection: str
    server_sees: str
    clients_see: str
    together: str
    """Who, if they tell each other what they know, learn more than that."""
    noise: str
    networks: str
    cost: str
    audit: str


LADDER: Final = (
    Rung(
        "fedavg",
        "every client's gradient, and with it its samples",
        "the model",
        "nobody needs to",
        "sound",
        "any `nn.Module`; sound noise: without BatchNorm",
        "1",
        "broken: images read from single gradients",
    ),
    Rung(
        "masks",
        "the sum of the gradients, and nothing of one client",
        "the model",
        "the server and a third of the clients: single uploads",
        "sound",
        "any `nn.Module`; sound noise: without BatchNorm",
        "1, and some 15 ms a round and client",
        "single uploads hold; a server that crafts the model reads samples out of sums",
    ),
    Rung(
        "perturbation",
        "the sum of the gradients, and nothing of one client",
        "a disguised model: a client that tries gets what it computes, and its weights to some percent",
        "the server and a third of the clients: single uploads",
        "sound, with MSE",
        "traced by `torch.fx`, of known layers, ends in a `Linear`",
        "1.0 to 2.3 plain steps",
        "the server's side as with masks; for the clients' side nothing is claimed, and it is broken",
    ),
    Rung(
        "sealed",
        "the sum of the gradients, and nothing of one client",
        "nothing: words that are uniform to it",
        "a client and its dealer: the model of a round; the server and a client's dealer: that client's batch",
        "none",
        "linear layers, convolutions, ReLU, pooling; no BatchNorm that trains",
        "20 to 60 plain steps; some 150 bytes an activation",
        "matching, copying and membership by clients (AUC 0.52, 0.48 to 0.57) at chance among parties that follow the "
        "protocol; a server that crafts models reads samples out of sums, unseen",
    ),
)
TITLES: Final = {
    "protection": "`--protection`",
    "server_sees": "the server sees",
    "clients_see": "clients see",
    "together": "together they learn more",
    "noise": "noise on top",
    "networks": "networks",
    "cost": "a client's step",
    "audit": "our audit",
}


def rung_of(protection: str, masks: str) -> Rung | None:
    """Where a plan stands: its protection (as plans store it) and the masks that it comes to. None: beside the ladder.

    A disguised or sealed model without masks, float masks, and what the papers published are rungs of nobody.
    """
    on_sums = "masks" if protection in ("fedavg", "masks") else protection
    wanted = {"none": "fedavg" if on_sums == "masks" else "", "ring": on_sums}.get(masks)
    return next((rung for rung in LADDER if rung.protection == wanted), None)


def who_sees_what(rung: Rung) -> dict[str, str]:
    """The three cells that a summary has room for, by their titles."""
    return {TITLES[name]: getattr(rung, name) for name in ("server_sees", "clients_see", "together")}


def in_a_sentence() -> str:
    """For the help of an option."""
    return "; ".join(f"{word_of(rung.protection)}: clients see {rung.clients_see.partition(':')[0]}" for rung in LADDER)


def as_markdown() -> str:
    """The table, for README and other pages."""
    names = [item.name for item in fields(Rung)]
    lines = ["| " + " | ".join(TITLES[name] for name in names) + " |", "|" + "---|" * len(names)]
    for rung in LADDER:
        cells = [f"`{rung.protection}`" if name == "protection" else getattr(rung, name) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def as_dicts() -> list[dict[str, str]]:
    """For `--json`."""
    return [asdict(rung) for rung in LADDER]
