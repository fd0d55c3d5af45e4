import bilateral

EXPECTED = {
    "BilateralError",
    "Dataset",
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
    "run",
}


def test_the_public_namespace_is_exactly_what_is_documented():
    assert set(bilateral.__all__) == EXPECTED
    assert all(hasattr(bilateral, name) for name in EXPECTED)
