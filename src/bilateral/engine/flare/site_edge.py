"""Where a site's own code meets FLARE. Nothing is raised there: FLARE would send the traceback to the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from bilateral.engine.remote.edge import REFUSED
from bilateral.errors import BilateralError, PlanNotAcceptedError
from bilateral.protocols.transport import SERVER

log = logging.getLogger("bilateral.site")
NOT_ACCEPTED = "the operator of this site has not agreed to this plan, or to code that it names; its own log says more."
_Desk = TypeVar("_Desk")


def ask_desk(
    caller: str, open_desk: Callable[[], _Desk], question: Callable[[_Desk], dict[str, Any]]
) -> dict[str, Any]:
    """The desk's answer, or why there is none. FLARE lets every participant call a site; only the server may.

    Why a desk was not opened is told in fixed words: the job's own could hold what the site keeps to itself.
    """
    if caller != SERVER:
        return {REFUSED: f"only the server may call a site, not {caller}."}
    try:
        desk = open_desk()
    except PlanNotAcceptedError as error:
        log.error("%s", error)
        return {REFUSED: NOT_ACCEPTED}
    except BilateralError as error:
        log.error("%s", error)
        return {REFUSED: f"{type(error).__name__} at the site; its own log says more."}
    except Exception:  # the edge of the site: whatever it is, it stays in the site's log
        log.exception("the site cannot take part")
        return {REFUSED: "an internal error at the site; its own log says more."}
    return question(desk)
