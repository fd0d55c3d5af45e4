"""A budget for the whole run: what noise it takes, and what that costs in accuracy."""

from __future__ import annotations

import bilateral


def main() -> tuple[bilateral.RunResult, bilateral.RunResult]:
    plain = bilateral.RunPlan().with_settings(
        {"protection": "masks", "data.name": "breast-cancer", "model.name": "mlp-3", "training.rounds": 20}
    )
    private = plain.with_settings({"noise.mechanism": "sound", "noise.epsilon": 8.0})
    report = bilateral.privacy_of(private)
    assert report is not None
    row = report.rows[0]
    print(f"epsilon {row.epsilon:.2f} at delta {row.delta:g} for one {report.unit}, against {row.observer}")
    with_noise, without = (bilateral.run(plan, save=False) for plan in (private, plain))
    for name, result in (("with noise", with_noise), ("without", without)):
        print(f"{name}: accuracy {result.metrics['test_accuracy']:.3f}")
    return with_noise, without


if __name__ == "__main__":
    main()
