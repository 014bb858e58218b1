"""A small course in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.places import Course

SOURCE = '''\
# %% [markdown]
# # 00 Your first lesson
# You add numbers.

# %%
import math

# %% [markdown] exercise="0.1" role="statement"
# ### 0.1 Double
# Return twice the number.

# %% exercise="0.1" role="hole"
def double(x: int) -> int:
    """Twice x."""
    # BEGIN SOLUTION
    return 2 * x
    # END SOLUTION

# %% exercise="0.1" role="check" points=10
assert double(4) == 8, "values: double(4) must be 8"

# %% exercise="0.1" role="look"
print("twice", double(21))

# %% [markdown] exercise="0.2" role="statement"
# ### 0.2 Triple

# %% exercise="0.2" role="hole"
def triple(x: int) -> int:
    """Three times x."""
    total = x
    for _ in range(2):
        # BEGIN SOLUTION
        total += x
        # END SOLUTION
    return total

# %% exercise="0.2" role="check" points=5
assert triple(4) == 12, f"values: triple(4) must be 12, got {triple(4)}"

# %% tags=["raises-exception"]
raise RuntimeError("on purpose")

# %%
# %%timeit -n 1 -r 1
math.sqrt(2)
'''


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """A course with one source, not built yet."""
    made = Course(tmp_path / "course")
    made.solutions.mkdir(parents=True)
    made.lessons.mkdir()
    (made.root / "pyproject.toml").touch()
    (made.solutions / "00_first.py").write_text(SOURCE)
    return made
