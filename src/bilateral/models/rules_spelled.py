"""The rule for the call that `spelled_out` adds to torch's own."""

from __future__ import annotations

from typing import Any

from bilateral.models.builder import GraphBuilder, Site, Value
from bilateral.models.identities import Identities
from bilateral.models.rules import handles_constants, rule
from bilateral.models.spelled_out import joined_mask


@handles_constants
@rule(joined_mask)
def _joined_mask(
    builder: GraphBuilder, site: Site, attention: Any, padding: Any, num_heads: int, dtype: Any
) -> Identities:
    for mask in (attention, padding):
        if isinstance(mask, Value) and not mask.is_clear:
            raise site.refuse("a mask is computed with parameters", "Compute masks from the inputs alone.")
    return Identities.pinned(site.output.shape).changed(builder.token())
