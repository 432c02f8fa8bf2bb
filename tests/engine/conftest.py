from collections.abc import Callable

import pytest

from srb.engine.constraints import banned_strings


@pytest.fixture
def limit_rewinds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how often an alternative may be rewound."""
    return lambda most: monkeypatch.setattr(banned_strings, "MAX_REWINDS", most)
