"""computekit's fixtures: run_computekit and small_model."""

pytest_plugins = ["computekit.testing"]
