import bilateral

EXPECTED = {
    "AuditResult",
    "BilateralError",
    "Callback",
    "Dataset",
    "HeteroPlan",
    "Identity",
    "KeyRing",
    "MLflow",
    "MaskClient",
    "MaskServer",
    "MaskSettings",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "PredictionClient",
    "PredictionServer",
    "Randomness",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "SecureRandomness",
    "SeededRandomness",
    "Split",
    "TensorBoard",
    "WandB",
    "aggregate",
    "audit_plan",
    "build_model",
    "compare",
    "compile_model",
    "export_run",
    "inspect",
    "load_dataset",
    "load_exported",
    "load_plan",
    "noise_for",
    "privacy_of",
    "run",
    "run_hetero",
    "spent",
}


def test_the_public_namespace_is_exactly_what_is_documented():
    assert set(bilateral.__all__) == EXPECTED
    assert all(hasattr(bilateral, name) for name in EXPECTED)
