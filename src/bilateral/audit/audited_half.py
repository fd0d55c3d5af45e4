"""What an audit needs of a protection, beyond training with it: what its server holds, and what it makes of one upload.

Figures are scored against this truth. A protection that does not answer is refused by name before anything is recorded:
taken for one without secrets, its audit would be wrong in silence.
"""

from __future__ import annotations

from typing import Final, Protocol

from bilateral.errors import NotAuditableError
from bilateral.learning.halves import ServerHalf
from bilateral.protocols.messages import Aggregate, RecoveredUpdate
from bilateral.protocols.perturb.secrets import RoundSecrets

ASKED: Final = ("secrets", "recover_one")


class AuditedServer(ServerHalf, Protocol):
    """A server's half that says what a server that attacks its clients knows."""

    @property
    def secrets(self) -> RoundSecrets | None:
        """Under which the model of the current round was sent; None if models are sent as they are."""
        ...

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """What recovery makes of any sum, also of one upload alone, before this server adds noise of its own."""
        ...


def audited(half: ServerHalf) -> AuditedServer:
    """The half, which must answer what an audit asks."""
    kind = type(half)
    missing = [name for name in ASKED if not hasattr(kind, name)]  # of the class: a property may need a round
    if missing:
        raise NotAuditableError(
            f"{kind.__module__}.{kind.__qualname__} does not say what its server holds: it has no "
            f"{' and no '.join(f'`{name}`' for name in missing)}.",
            remedy="Give it what `bilateral.audit.audited_half.AuditedServer` describes; `secrets` may be None.",
        )
    return half  # type: ignore[return-value]
