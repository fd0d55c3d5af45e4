"""Keep freed memory in the process instead of handing every large array back to the system.

glibc returns arrays above 32 MB to the kernel at once, and each round would have them mapped and zeroed again, page by
page: with 13 million parameters that was five sixths of a round. A command may decide this for its process; the library
leaves the allocator of a user's program alone.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_LARGEST_INT: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to reuse large arrays. False where there is no glibc; nothing is changed there."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))
