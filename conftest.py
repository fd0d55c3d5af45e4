"""Property tests, wherever they are: the same examples every time, and no verdict by the clock.

`HYPOTHESIS_PROFILE=search pytest ...` looks for new examples.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, database=None, **_NO_CLOCK)
settings.register_profile("search", **_NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
