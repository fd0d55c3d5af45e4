import subprocess
import sys

import pytest

CHILD = """
import resource, sys
from bilateral.cli.memory import keep_freed_memory
import torch
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.empty(25_000_000).fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # a few are mapped until the heap has room between small objects
    torch.empty(25_000_000).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc's allocator")
def test_large_arrays_are_not_mapped_anew_every_time():
    faults = {}
    for mode in ("keep", "leave"):
        words = [sys.executable, "-c", CHILD, mode]
        faults[mode] = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert faults["keep"] < 0.5 * faults["leave"]
