"""What a plan spends, before anything is trained."""

from __future__ import annotations

from pathlib import Path

from bilateral.arguments import checked
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.protocols.noise.privacy_report import PrivacyReport


@checked
def privacy_of(plan: RunPlan, *, data_dir: str | Path | None = None) -> PrivacyReport | None:
    """Epsilon of one round and of the run, for the data and the model of the plan; None if it adds no noise."""
    federation = load_federation(plan, None if data_dir is None else Path(data_dir))
    return make_blueprint(plan, federation).server().privacy  # building a side refuses what cannot be built
