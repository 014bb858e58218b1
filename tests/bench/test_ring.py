"""The ring's benchmark times both, in pairs, and names what it timed."""

from __future__ import annotations

import pytest

from labkit.bench import ring


@pytest.mark.slow
def test_each_size_is_timed_in_pairs_beside_the_backends_own() -> None:
    found = ring.measure((2,), sizes=(1 << 12, 1 << 14), pairs=4)
    assert [figure.name for figure in found] == [
        "ring all-reduce of 4 KiB, 2 ranks", "ring all-reduce of 16 KiB, 2 ranks",
    ]  # fmt: skip
    for figure in found:
        assert figure.theirs is not None
        assert figure.interval is not None
        assert figure.aa_interval is not None
        assert min(figure.ours, figure.theirs) > 0
