"""Who attacks single uploads in the game of swapped batches: the claim (or ledger line) it attacks, and its view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bilateral.audit.experiment import Context, has_subject, subject_of_uploads
from bilateral.audit.recording import Recording
from bilateral.audit.threat import client_view, eavesdropper_view, server_view
from bilateral.audit.topics.swapped.swapped_rounds import Table
from bilateral.audit.views import AdversaryName, View
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee, Subject
from bilateral.protocols.messages import Message
from bilateral.protocols.perturb.messages import SoftmaxQuery, SoftmaxReply


@dataclass(frozen=True)
class Attacker:
    """An adversary of this game, the claim (or line) it attacks, and how its view is cut."""

    adversary: AdversaryName
    tests: Subject | int
    clients: tuple[str, ...]
    view: Callable[[Recording], View]
    sees_uploads: bool
    naive: bool = True


def attackers_of(context: Context, table: Table, guarantee: Guarantee) -> list[Attacker]:
    """Everybody from whom the plan says that single uploads are hidden; the server in any case."""
    found: list[Attacker] = []
    others = table.others
    if has_subject(guarantee, "other clients' uploads"):
        pooled = others[: _most_pooled(context.plan, table)]
        if others:
            found.append(_clients("curious client", others[:1]))
        if len(pooled) > 1:
            found.append(_clients("colluding clients", pooled))
        found.append(Attacker("eavesdropper", "other clients' uploads", (), eavesdropper_view, sees_uploads=True))
    tests = subject_of_uploads(guarantee)
    found.append(Attacker("curious server", tests, (), server_view, sees_uploads=True))
    colluding = others[: _most_colluding(context.plan, len(table.names))]
    if tests == "single uploads" and colluding:
        found.append(
            Attacker(
                "server with colluding clients",
                tests,
                colluding,
                lambda recording: server_view(recording, colluding),
                sees_uploads=True,
                naive=False,
            )
        )
    return found


def _clients(adversary: AdversaryName, names: tuple[str, ...]) -> Attacker:
    return Attacker(
        adversary,
        "other clients' uploads",
        names,
        lambda recording: client_view(recording, *names),
        sees_uploads=False,
        naive=len(names) == 1,
    )


def _most_colluding(plan: RunPlan, num_clients: int) -> int:
    """With the server: two honest uploads must remain in every sum, and no secret may be reconstructed."""
    settings = plan.aggregation.settings()
    floor, threshold = settings.floor_of(num_clients), settings.threshold_of(num_clients)
    return max(0, min(floor - 2, threshold - 1, num_clients - 2))


def _most_pooled(plan: RunPlan, table: Table) -> int:
    """Without the server: all but the two suspected, unless successive models tell clients the sums."""
    count = len(table.names)
    if plan.traits.hides_model:
        return count - 2
    return max(0, min(count - 2, plan.aggregation.settings().floor_of(count) - 2))


def asks(context: Context) -> bool:
    """Whether clients ask the server for a softmax, which shows it their batch (line 8)."""
    plan, loss = context.plan, context.federation().problem.loss
    return plan.chosen.asks(loss)


def left_out_of(context: Context) -> tuple[type[Message], ...]:
    """Messages that tell the worlds apart by themselves, and are not what is tested here."""
    return (SoftmaxQuery, SoftmaxReply) if asks(context) else ()
