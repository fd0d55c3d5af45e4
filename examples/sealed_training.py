"""Sites train a model that none of them has. An auditor without data deals."""

from __future__ import annotations

import bilateral


def main() -> bilateral.RunResult:
    plan = bilateral.RunPlan().with_settings(
        {
            "protection": "sealed",
            "federation.dealer": "auditor",
            "federation.clients": 3,
            "data.name": "breast-cancer",
            "model.name": "mlp-3",
            "training.rounds": 30,
        }
    )
    result = bilateral.run(plan, save=False)
    (model,) = (claim for claim in result.guarantee.claims if claim.subject == "sealed model")
    difference = f"{result.difference_to_fedavg:.0e}"
    print(
        f"accuracy {result.metrics['test_accuracy']:.3f}; the largest difference of weights to FedSGD's is {difference}"
    )
    print(f"hidden from {model.whom}: {model.what}")
    print(f"if {model.assumption}")
    return result


if __name__ == "__main__":
    main()
