"""What a plan spends, before anything is trained."""

from __future__ import annotations

from pathlib import Path

from bilateral.engine.federation import analyse, initial_model, load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.stack import build_stack
from bilateral.protocols.noise.privacy_report import PrivacyReport


def privacy_of(plan: RunPlan, *, data_dir: str | Path | None = None) -> PrivacyReport | None:
    """Epsilon of one round and of the run, for the data and the model of the plan; None if it adds no noise."""
    federation = load_federation(plan, None if data_dir is None else Path(data_dir))
    graph = analyse(plan, federation)
    return build_stack(plan, federation, initial_model(plan, federation), graph).privacy
