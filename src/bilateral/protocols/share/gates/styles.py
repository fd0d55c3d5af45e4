"""How two parties who share numbers find out which of them are positive, and who sees what of it.

| style | who compares | what anybody sees |
|---|---|---|
| `sealed` | the two computing parties, with tables dealt before (`sealed`) | nothing: all that is opened is uniform |
| `hardened` | the dealer, who judges blinded numbers (`judged`) | the dealer: blurred sizes, in random order |
| `published` | the dealer, as P4 has it (`judged`) | the dealer: every sign and blinded size, in its place |

`sealed` is the default. The judged ones take fewer rounds between the computing parties but need the dealer while they
compute; `hardened` is for slow links, `published` for the audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

StyleName = Literal["sealed", "hardened", "published"]


@dataclass(frozen=True)
class ComparisonStyle:
    """A way to compare. All but `is_judged` says how numbers are blinded before the dealer judges them."""

    name: str
    is_judged: bool
    """The dealer is asked while the parties compute. Otherwise it deals, and hears nothing."""
    flips: bool = False
    """A random sign an element."""
    reorders: bool = False
    """A random order of the elements of a sample."""
    is_logarithmic: bool = False
    """Factors spread smoothly over octaves; otherwise uniform."""
    random_offset: bool = False
    """An offset anywhere between zero and the factor; otherwise in the middle."""


SEALED: Final = ComparisonStyle("sealed", is_judged=False)
HARDENED: Final = ComparisonStyle("hardened", True, True, True, True, True)
PUBLISHED: Final = ComparisonStyle("published", True)
STYLES: Final = {style.name: style for style in (SEALED, HARDENED, PUBLISHED)}
DEFAULT_STYLE: Final = SEALED
