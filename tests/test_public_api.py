import bilateral

EXPECTED = {
    "AuditResult",
    "audit_plan",
    "BilateralError",
    "Dataset",
    "HeteroPlan",
    "PredictionClient",
    "PredictionServer",
    "compile_model",
    "run_hetero",
    "Identity",
    "KeyRing",
    "MaskClient",
    "MaskServer",
    "MaskSettings",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "Split",
    "aggregate",
    "build_model",
    "compare",
    "export_run",
    "inspect",
    "load_dataset",
    "load_exported",
    "load_plan",
    "noise_for",
    "privacy_of",
    "run",
    "spent",
}


def test_the_public_namespace_is_exactly_what_is_documented():
    assert set(bilateral.__all__) == EXPECTED
    assert all(hasattr(bilateral, name) for name in EXPECTED)
