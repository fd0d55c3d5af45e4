"""Heterogeneous runs, as the table of kinds names them."""

from __future__ import annotations

from bilateral.engine.kind import HETERO
from bilateral.runs.hetero.hosted import HostedHetero


class HeteroKind(HostedHetero):
    """Clients with networks of their own teach each other.

    Not deployable: kits pin no identity of the server, which holds keys here, and sites draw their queries by the
    plan's seed: whoever knows the plan would know them.
    """

    name: str = HETERO
    command: str = "hetero"
    deployable: bool = False


KIND = HeteroKind()
