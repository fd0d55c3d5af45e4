"""Sites with different networks teach each other: each asks the others, and learns the sum of their answers."""

from __future__ import annotations

import bilateral
from bilateral.runs.hetero.result import HeteroResult


def main() -> HeteroResult:
    plan = bilateral.HeteroPlan().with_settings(
        {
            "clients.number": 3,
            "clients.architectures": [{"name": "mlp-3"}, {"name": "lenet"}],
            "queries.number": 30,
            "training.epochs": 10,
        }
    )
    result = bilateral.run_hetero(plan, save=False)
    for client in result.clients:
        alone, *_, after = client.accuracies
        print(f"{client.name} ({client.architecture}): accuracy alone {alone:.3f}, after asking {after:.3f}")
    return result


if __name__ == "__main__":
    main()
