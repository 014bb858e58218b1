"""Wrong versions of a module, made by one change of its source.

A property is a function of the module that it is about. It must hold for the module,
and fail for each named mutant: else the test does not see what the mutant breaks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

Property = Callable[[ModuleType], None]
Changes = Mapping[str, tuple[str, str]]


def changed(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with one place of its source changed; `old` stands there once."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, (module.__name__, old, source.count(old))
    made = ModuleType(module.__name__)
    code = compile(source.replace(old, new), f"<{module.__name__}: {new}>", "exec")
    exec(code, made.__dict__)
    return made


def holds_and_catches(holds: Property, module: ModuleType, wrong: Changes) -> None:
    """A property holds for a module, and fails for each of its wrong versions."""
    holds(module)
    for name, (old, new) in wrong.items():
        caught, mutant = False, changed(module, old, new)
        try:
            holds(mutant)
        except AssertionError:
            caught = True
        if not caught:
            pytest.fail(f"{holds.__name__} does not see the mutant: {name}")
