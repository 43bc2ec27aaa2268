"""The layers of the design, read off the imports: a module may import its own layer and the ones below it."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "gwatch"
# First match wins; the number is the layer's height. common.format sits beside the stack: it may use errors alone.
LAYERS = [
    ("gwatch.errors", 0),
    ("gwatch._resources", 0),
    ("gwatch._files", 0),
    ("gwatch._kinds", 0),
    ("gwatch.sass", 1),
    ("gwatch.cuda.binary", 2),
    ("gwatch.rewrite", 3),
    ("gwatch.diff", 3),
    ("gwatch.inspect", 3),
    ("gwatch.check", 3),
    ("gwatch.cuda.driver", 4),
    ("gwatch.cuda.catcher", 4),
    ("gwatch.cuda.cupti", 4),
    ("gwatch.cuda.closed", 4),
    ("gwatch.cuda.capture", 4),
    ("gwatch.cuda.images", 4),
    ("gwatch.cuda.launchview", 4),
    ("gwatch.cuda.latefind", 4),
    ("gwatch.cuda.reachable", 4),
    ("gwatch.cuda.arguments", 4),
    ("gwatch.cuda.arming", 4),
    ("gwatch.cuda.xtrace", 5),
    ("gwatch.cuda.program", 5),
    ("gwatch.cuda.trace", 5),
    ("gwatch.cuda.launcher", 5),
    ("gwatch.cuda", 5),
    ("gwatch.libpygwatch", 5),
    ("gwatch.cli", 6),
    ("gwatch.__main__", 6),
    ("gwatch.rewrite.__main__", 6),
    ("gwatch.diff.__main__", 6),
]
# Packages that may be imported by one module each (numpy excepted): everything else goes through that module.
SINGLE_IMPORTER = {
    "lark",
    "elftools",
    "msgpack",
    "lz4",
    "zstandard",
    "cuda",
    "torch",
    "cupy",
    "triton",
    "cutlass",
    "pydemumble",
    "distributed",
}


def _module(path: Path) -> str:
    name = ".".join(("gwatch", *path.relative_to(PACKAGE).with_suffix("").parts))
    return name.removesuffix(".__init__")


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {_module(path) for path in FILES}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide layers"
            assert node.module is not None
            for alias in node.names:
                # `from package import module` depends on the module, `from module import name` on the module.
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
    return found


def _layer(module: str) -> int | None:
    exact = [height for name, height in LAYERS if module == name]
    if exact:
        return exact[0]
    matching = [(len(name), height) for name, height in LAYERS if module.startswith(name + ".")]
    return max(matching)[1] if matching else None


@pytest.mark.parametrize("path", FILES, ids=[_module(path) for path in FILES])
def test_a_module_imports_only_its_own_layer_and_below(path: Path) -> None:
    module = _module(path)
    own = _layer(module)
    assert own is not None or module.startswith("gwatch.common") or module == "gwatch", (
        f"{module} has no layer"
    )
    for imported in _imports(path):
        if not imported.startswith("gwatch."):
            continue
        if module.startswith("gwatch.common"):
            assert imported.startswith(("gwatch.common", "gwatch.errors", "gwatch._")), imported
        elif own is not None and (other := _layer(imported)) is not None:
            assert other <= own, f"{module} (layer {own}) imports {imported} (layer {other})"


def test_each_third_party_package_has_one_importing_module() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for imported in _imports(path):
            top = imported.split(".")[0]
            if top in SINGLE_IMPORTER:
                users[top].add(_module(path))
    assert {name: modules for name, modules in users.items() if len(modules) > 1} == {}


def test_no_module_but_arch_compares_sm_numbers() -> None:
    # An architecture's facts live in one place; `sm >= 90` anywhere else is a fact that escaped.
    offenders = []
    for path in FILES:
        if _module(path) in ("gwatch.sass.arch",):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                names = {
                    getattr(part, "attr", getattr(part, "id", "")) for part in (node.left, *node.comparators)
                }
                numbers = {
                    part.value for part in (node.left, *node.comparators) if isinstance(part, ast.Constant)
                }
                if names & {"sm", "sm_number", "sm_version"} and any(
                    isinstance(n, int) and n >= 50 for n in numbers
                ):
                    offenders.append(f"{_module(path)}:{node.lineno}")
    assert offenders == []
