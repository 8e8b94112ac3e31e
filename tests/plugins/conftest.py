"""Contract tests that run a step are slow: each trains, measures or starts a process."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name == "test_contracts.py" and "step" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
