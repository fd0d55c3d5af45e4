"""What the experiments on secret-shared prediction have in common: trained clients, who asks and who answers.

The querying party also trains *shadows*: networks of the answering clients' architectures, which it is told (ledger,
line 13), on samples of its own. They are its idea of the others' networks before it has seen anything: what it learns
from a view must beat them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bilateral.audit.effort import SharedEffort
from bilateral.audit.shared_recording import SharedParties, querying_view
from bilateral.audit.shared_views import Session, SharedView, numbers_in_place
from bilateral.data import Split
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import SEALED, ComparisonStyle
from bilateral.randomness import Randomness
from bilateral.runs.hetero.parties import answerers_of, deal, make_client
from bilateral.runs.hetero.plan import HeteroPlan

Progress = Callable[[float, str], None]
Seen = Mapping[str, Sequence[Tensor]]
"""What the querying party has in the place of compared numbers: by answering party, a tensor a comparison."""


@dataclass(frozen=True, repr=False)
class SharedSetting:
    """Clients after their own training. `models` are what answers, in the clear and compiled."""

    plan: HeteroPlan
    style: ComparisonStyle
    effort: SharedEffort
    randomness: Randomness
    """For what attackers and controls draw."""
    querier: str
    own: nn.Module
    """The querying party's network."""
    queries: Tensor
    """What the plan lets it ask in an iteration."""
    networks: Mapping[str, nn.Module]
    models: Mapping[str, FixedPointModel]
    shadows: Mapping[str, FixedPointModel]
    test: Split

    @property
    def few_queries(self) -> Tensor:
        return self.queries[: self.effort.queries]

    def parties(self, style: ComparisonStyle, *labels: str | int) -> SharedParties:
        """Clients and a server with keys of their own."""
        names = (self.querier, *self.models)
        return SharedParties(names, self.randomness.child("parties", style.name, *labels), style)


def prepare(
    plan: HeteroPlan,
    style: ComparisonStyle,
    effort: SharedEffort,
    randomness: Randomness,
    on_progress: Progress,
    data_dir: Path | None = None,
) -> SharedSetting:
    """Train the first client, those who answer it in the first iteration, and the shadows."""
    shares = deal(plan, data_dir)
    querier = plan.clients.names[0]
    answerers = answerers_of(plan, querier, 1)
    own = make_client(plan, querier, shares.clients[querier], shares.num_classes)
    own.local_train()
    own_data = shares.clients[querier]
    attackers_plan = plan.with_settings({"seed": int.from_bytes(randomness.child("shadows").random_bytes(6), "little")})
    networks, models, shadows = {}, {}, {}
    trained: dict[str, FixedPointModel] = {}
    for position, name in enumerate(answerers):
        on_progress(position / len(answerers), f"{name} trains")
        client = make_client(plan, name, shares.clients[name], shares.num_classes)
        client.local_train()
        networks[name] = client.answering_model()
        models[name] = compile_model(networks[name], shares.clients[name].inputs)
        label = plan.clients.label(name)
        if label not in trained:
            shadow = make_client(attackers_plan, name, own_data, shares.num_classes)
            shadow.local_train()
            trained[label] = compile_model(shadow.answering_model(), own_data.inputs)
        shadows[name] = trained[label]
    queries = own.make_queries(1)
    return SharedSetting(
        plan, style, effort, randomness, querier, own.model, queries, networks, models, shadows,
        shares.test,
    )  # fmt: skip


def ask_again(
    setting: SharedSetting,
    style: ComparisonStyle,
    queries: Tensor,
    models: Mapping[str, FixedPointModel],
    repeats: int,
    label: str,
    *,
    first_only: bool = False,
    a_session: int = 1,
    read: Callable[[SharedView, Session], list[Tensor]] = numbers_in_place,
) -> list[Seen]:
    """What the querying party sees of the same queries, asked so many times, and how often in one session."""
    parties = setting.parties(style, label)
    found: list[Seen] = []
    for start in range(0, repeats, a_session):
        times = min(a_session, repeats - start)
        asked = queries.repeat(times, *[1] * (queries.ndim - 1))
        view = querying_view(parties.ask(setting.querier, asked, models, num_parts=times))
        seen = {session.answerer: read(view, session) for session in view.sessions}
        for part in range(times):
            rows = slice(part * len(queries), (part + 1) * len(queries))
            found.append({n: [u[rows] for u in (us[:1] if first_only else us)] for n, us in seen.items()})
    return found


def about_activations(style: ComparisonStyle) -> Subject | int:
    """Sealed comparisons claim to show nothing of activations; the judged ones admit to show some (ledger, line 5)."""
    return "activations" if style is SEALED else 5


def in_place_words(style: ComparisonStyle) -> str:
    """What `numbers_in_place` reads, in words."""
    return "blinded numbers, unmasked" if style.is_judged else "all that it received, less the masks that it dealt"


def random_like(numbers: Tensor, randomness: Randomness) -> Tensor:
    """Of random signs, and sizes spread as a factor times an activation is."""
    sizes = randomness.log_uniform(*numbers.shape, low=2.0**35, high=2.0**55)
    return (sizes * randomness.signs(*numbers.shape)).to(torch.int64)
