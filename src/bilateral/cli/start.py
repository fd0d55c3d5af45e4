"""Where the `bilateral` command begins: the process is prepared before torch starts, then `main` takes over.

torch's threads spin while they wait for each other. Alone on a machine that gains a little; beside other work, the
spinning keeps the core from whoever is waited for, and a run took ten times as long. OpenMP reads its settings when it
is loaded, so this must come first. What the user has set in the environment stays.
"""

from __future__ import annotations

import os


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from bilateral.cli.main import main as command  # noqa: PLC0415 (imports torch)

    command()


if __name__ == "__main__":
    main()
