import pytest

from srb.wire.embeddings import normalize


def test_normalizations() -> None:
    assert normalize([3, -4], -1) == [3, -4]
    assert normalize([3, -4], 0) == [24570, -32760]
    assert normalize([3, -4], 1) == pytest.approx([3 / 7, -4 / 7])
    assert normalize([3, -4], 2) == pytest.approx([0.6, -0.8])
    assert normalize([3, -4], 3) == pytest.approx([3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)])
    assert normalize([3e200, -4e200], 5_000) == pytest.approx([0.75, -1])
    assert normalize([0, 0], 2) == [0, 0]
