"""Which part of labkit may import which: DESIGN's table, as data, held by parsing.

The rules count every import, also those inside a function or for type checking.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "labkit"

BASE = {"errors", "units"}
TECHNIQUES = {"layout", "comm", "model", "schedule", "record"}
BELOW_RUNTIME = {
    *BASE, "record", "schedule", "replay", "model", "comm", "layout", "parallel",
    "planner", "view",
}  # fmt: skip

# From each part to what it may import besides itself. The longest matching name counts,
# and a dotted target allows that module only.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "record": BASE,
    "schedule": BASE | {"record.program"},
    "replay": BASE | {"record", "schedule"},
    "model": BASE,
    "comm": BASE | {"record"},
    "layout": BASE | {"comm", "model"},
    "parallel": BASE | TECHNIQUES,
    "planner": BASE | {"replay", "schedule", "model.sizes", "record.program"},
    "view": BASE | {"record", "schedule", "planner"},
    "runtime": BASE | {"view", "comm", "record", "replay"},
    "runtime.rank": BASE | {"comm", "record"},
    "checks": BELOW_RUNTIME | {"runtime"},
    "checks.verify": BELOW_RUNTIME - {"view"},
    "course": BELOW_RUNTIME | {"runtime", "checks"},
    "bench": BELOW_RUNTIME | {"runtime", "checks", "course"},
    "cli": BELOW_RUNTIME | {"runtime", "checks", "course", "bench"},
    "__main__": {"cli"},
    "": BELOW_RUNTIME | {"runtime", "checks", "course"},
}
# These must import where nothing but torch and numpy is installed.
LIGHT = (
    "errors", "units", "record", "schedule", "replay", "model", "comm", "layout",
    "parallel", "planner",
)  # fmt: skip
NO_TORCH = ("errors", "units", "schedule", "planner")
THIRD_PARTY: dict[str, set[str]] = {
    **{part: {"torch", "numpy"} for part in LIGHT},
    **{part: {"numpy"} for part in NO_TORCH},
    "runtime.rank": {"torch", "numpy", "cloudpickle"},
}
# Inside `parallel`, no technique imports another; only `hybrid` composes them.
COMPOSES = "hybrid"
MAX_EXPORTS = 25


def module_name(path: Path) -> str:
    """The module's name inside labkit: "record.events", "" for labkit itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module of labkit by its name."""
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every name that a module imports, as absolute dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(name: str, path: Path) -> list[str]:
    """Every name that one of labkit's modules imports."""
    is_package = path.name == "__init__.py"
    package = f"labkit.{name}" if is_package else f"labkit.{name}".rpartition(".")[0]
    return list(imports(ast.parse(path.read_text()), package.rstrip(".")))


def longest(name: str, keys: dict[str, set[str]]) -> str:
    """The most specific key that covers a module."""
    covering = [key for key in keys if f"{name}.".startswith(f"{key}.") or not key]
    return max(covering, key=len)


def breaches(name: str, imported: list[str]) -> list[str]:
    """Those of a module's imports from labkit that the table does not allow."""
    known = {key.partition(".")[0] for key in ALLOWED}
    part = longest(name, ALLOWED)
    allowed = {part, *ALLOWED[part]} - {""}
    targets = [i.removeprefix("labkit.") for i in imported if i.startswith("labkit.")]
    return [
        target
        for target in targets
        if target.partition(".")[0] in known
        and not any(f"{target}.".startswith(f"{key}.") for key in allowed)
    ]


@pytest.mark.parametrize("name", modules())
def test_imports_only_what_is_allowed(name: str) -> None:
    found = imports_of(name, modules()[name])
    assert breaches(name, found) == []


@pytest.mark.parametrize("name", modules())
def test_every_module_has_its_line_in_the_table(name: str) -> None:
    assert longest(name, ALLOWED) or not name


def siblings(name: str, imported: list[str]) -> list[str]:
    """Those imports by which one technique would depend on another."""
    technique = name.split(".")[1]
    inside = [i for i in imported if i.startswith("labkit.parallel.")]
    return [
        target for target in inside if technique not in (COMPOSES, target.split(".")[2])
    ]


def test_no_technique_imports_a_sibling() -> None:
    for name, path in modules().items():
        if name.startswith("parallel."):
            assert siblings(name, imports_of(name, path)) == [], name


def test_the_sibling_rule_catches() -> None:
    zero = ["labkit.parallel.zero.shard"]
    assert siblings("parallel.data", zero) == zero
    assert siblings("parallel.zero.step", zero) == []
    assert siblings("parallel.hybrid", zero) == []


@pytest.mark.parametrize(
    "name", [n for n in modules() if n and longest(n, {"": set(), **THIRD_PARTY})]
)
def test_light_parts_name_no_other_package(name: str) -> None:
    allowed = THIRD_PARTY[longest(name, {"": set(), **THIRD_PARTY})]
    roots = {i.partition(".")[0] for i in imports_of(name, modules()[name])}
    strange = roots - sys.stdlib_module_names - {"labkit"} - allowed
    assert strange == set()


def run_python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter that finds labkit."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
         *arguments],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# Hides every installed package that torch and numpy (or those named) do not need.
HIDE_THE_REST = """
import importlib, importlib.metadata as metadata, re
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)
wanted, todo = set(), KEEP
while todo:
    name = re.match(r"[A-Za-z0-9_.-]+", todo.pop())[0].lower().replace("_", "-")
    if name not in wanted:
        wanted.add(name)
        try:
            todo += [r for r in metadata.requires(name) or () if "extra ==" not in r]
        except metadata.PackageNotFoundError:
            pass
hidden = {
    top for top, owners in metadata.packages_distributions().items()
    if not wanted & {owner.lower().replace("_", "-") for owner in owners}
} - {"labkit"}
assert "IPython" in hidden and "plotly" in hidden and "torch" not in hidden
sys.meta_path.insert(0, Hide())
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1, "torch" in sys.modules)
"""


def part_modules(parts: tuple[str, ...]) -> list[str]:
    """The modules of some parts, as absolute names."""
    return [
        f"labkit.{name}"
        for name in modules()
        if name and longest(name, {"": set(), **{part: set() for part in parts}})
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "keep"),
    [(LIGHT, ["torch", "numpy"]),
     (("runtime.rank",), ["torch", "numpy", "cloudpickle"])],
    ids=["lower layers", "a rank"],
)  # fmt: skip
def test_imports_where_little_is_installed(
    parts: tuple[str, ...], keep: list[str]
) -> None:
    names = part_modules(parts)
    code = HIDE_THE_REST.replace("KEEP", repr(keep))
    assert run_python(code, *names).split()[0] == str(len(names)) != "0"


def test_parts_without_torch_import_without_torch() -> None:
    names = part_modules(NO_TORCH)
    code = "import importlib\nfor n in sys.argv[1:]: importlib.import_module(n)\n"
    assert run_python(f"{code}print('torch' in sys.modules)", *names).strip() == "False"


def test_labkit_itself_loads_nothing() -> None:
    code = "import labkit, labkit.record.events\nprint(*sys.modules, sep='\\n')"
    loaded = set(run_python(code).split())
    assert not loaded & {"torch", "numpy", "IPython", "plotly", "rich"}


def test_exports_are_few_and_real() -> None:
    import labkit

    assert len(set(labkit.__all__)) == len(labkit.__all__) <= MAX_EXPORTS
    assert sorted(labkit.__all__) == dir(labkit)
    for name in labkit.__all__:
        assert getattr(labkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        labkit.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("record.events", "import labkit.runtime.cluster", ["runtime.cluster"]),
        ("record.events", "def f():\n from labkit.comm import x", ["comm.x"]),
        ("planner.search", "from labkit.model.decoder import D", ["model.decoder.D"]),
        ("planner.search", "from labkit.model.sizes import Sizes", []),
        ("runtime.rank.job", "from labkit.runtime import cluster", ["runtime.cluster"]),
        ("runtime.rank.job", "from ..drive import x", ["runtime.drive.x"]),
        ("comm.mesh", "from labkit.errors import UsageError", []),
        ("comm.mesh", "from . import stream", []),
        ("checks.verify", "from labkit.runtime import Run", ["runtime.Run"]),
        ("checks.lesson_00", "from labkit.runtime import Run", []),
    ],
)
def test_the_rule_catches(name: str, source: str, expected: list[str]) -> None:
    package = f"labkit.{name}".rpartition(".")[0]
    assert breaches(name, list(imports(ast.parse(source), package))) == expected
