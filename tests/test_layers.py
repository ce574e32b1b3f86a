"""The rooms of the house: who may import whom, read off every module's source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the top: a room imports itself and the rooms after it.
ROOMS = ("deploy", "actors", "characters", "kernels")
# The commands of a bench are its front door.
BENCH_COMMANDS = ("characters.cli.bench_step", "characters.cli.bench_chunk", "characters.cli.bench_decode")

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
}


def imports(module: str) -> Iterator[str]:
    """Every module that the source of `module` imports, those that a function imports among them."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names if f"{origin}.{alias.name}" in MODULES)


def is_bench(module: str) -> bool:
    """Whether a module belongs to the `bench/` folder of its room."""
    return module.split(".")[1:2] == ["bench"]


def broken(modules: Iterable[str], forbidden: Callable[[str], bool]) -> list[str]:
    """What modules import and may not."""
    return [f"{module} imports {other}" for module in modules for other in imports(module) if forbidden(other)]


def of(room: str) -> list[str]:
    """A room's modules."""
    return [module for module in MODULES if module.split(".")[0] == room]


def test_the_walk_sees_the_house() -> None:
    assert all(len(of(room)) > 10 for room in ROOMS)
    assert "kernels.fp8" in set(imports("kernels.attention")) and "triton" in set(imports("kernels.dispatch"))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down_only(room: str) -> None:
    above = {"tests", *ROOMS[: ROOMS.index(room)]}
    assert broken(of(room), lambda other: other.split(".")[0] in above) == []


def test_kernels_import_torch_alone() -> None:
    known = {*sys.stdlib_module_names, "kernels", "torch", "numpy", "triton", "cupy", "flash_attn", "fa3_fwd_interface"}
    assert broken(of("kernels"), lambda other: other.split(".")[0] not in known) == []


def test_the_library_knows_neither_ray_nor_livekit() -> None:
    above = {"ray", "livekit"}
    assert broken(of("characters"), lambda other: other.split(".")[0] in above) == []


def test_products_import_no_bench() -> None:
    products = [module for module in MODULES if not is_bench(module) and module not in BENCH_COMMANDS]
    assert broken(products, is_bench) == []
