"""docs/configuration.md says all that there is to set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deploy.cli.reference import PAGE, SECTIONS, VARIABLES, Section, meanings, page
from deploy.cli.up import ENVIRONMENT

ROOT = PAGE.parents[1]
PRODUCT = ("actors", "characters", "deploy", "kernels")
# Names that are not written where they are used: `key_variable` of the voice, and the table ENVIRONMENT.
COMPUTED = {"actors/voice/llm.py", "deploy/cli/up.py", "deploy/bench/room.py"}
# What is done to the whole environment at once, to hand it to another program.
WHOLE = {
    "deploy/serving/livekit_server.py": {"GOBIN", "LIVEKIT_CONFIG"},
    # CHARACTERS_BENCH is a mark that the bench finds its own processes by.
    "deploy/bench/running.py": {"TMPDIR", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"},
}


def test_the_page_is_what_the_schemas_say() -> None:
    assert PAGE.read_text() == page(), "run `python -m deploy.cli.reference`"


def test_every_file_that_ships_belongs_to_a_section() -> None:
    assert {folder.name for folder in (ROOT / "conf").iterdir()} == {s.folder for s in SECTIONS if s.folder}


@dataclass
class Wheel:
    """A wheel.

    Attributes:
        radius, width: metres,
            measured.

    Raises:
        colour: is not looked for here.
    """

    radius: float = 1.0
    width: float = 1.0
    colour: str = ""


def test_a_key_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meanings(Wheel) == dict.fromkeys(("radius", "width"), "metres, measured.")
    monkeypatch.setattr("deploy.cli.reference.SECTIONS", (Section("Wheel", Wheel, ""),))
    with pytest.raises(ValueError, match="docstring of Wheel does not say what colour is"):
        page()


def _sources() -> Iterator[tuple[str, str]]:
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text()


def _is_environment(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id in ("environ", "environment")
    )


def _used(file: str, text: str) -> Iterator[str]:
    """Names of variables in a file: `os.environ["NAME"]`, `environment.get("NAME")`, `os.getenv("NAME")`, ..."""
    for node in ast.walk(ast.parse(text)):
        name: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            name = node.slice
        elif isinstance(node, ast.Compare) and any(map(_is_environment, node.comparators)):
            name = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "getenv" or (
                _is_environment(node.func.value) and node.func.attr in ("get", "setdefault", "pop")
            ):
                name = node.args[0]
            elif _is_environment(node.func.value):
                assert file in COMPUTED, f"{file}:{node.lineno}: whole environment; name its variables"
        if isinstance(node, ast.BinOp) and _is_environment(node.left):
            assert file in WHOLE, f"{file}:{node.lineno}: whole environment; name its variables"
        if name is None:
            continue
        if isinstance(name, ast.Constant):
            yield str(name.value)
        else:
            assert file in COMPUTED, f"{file}:{node.lineno}: a computed name of a variable"


def test_every_variable_stands_on_the_page_and_no_other() -> None:
    used = {name for file, text in _sources() for name in _used(file, text)}
    used |= {name for names in WHOLE.values() for name in names} | {*ENVIRONMENT} | {"OPENAI_API_KEY"}
    for path in [*(ROOT / "deploy/cluster").glob("*.sh"), *(ROOT / "deploy/cluster").glob("compose*.yaml")]:
        used |= set(re.findall(r"\$\{([A-Z_]+)", path.read_text()))
    named = [name for names in VARIABLES.values() for name in names]
    assert len(named) == len(set(named))
    assert used == set(named)


@pytest.mark.parametrize(
    "text",
    ["os.environ['NEW']", "os.getenv('NEW')", "environment.get('NEW', '')", "os.environ.setdefault('NEW', '1')"]
    + ["'NEW' in os.environ", "os.environ['NEW'] = '1'"],
)
def test_a_new_variable_is_seen(text: str) -> None:
    assert [*_used("actors/new.py", text)] == ["NEW"]
    for hidden in ("os.environ[name]", "os.environ.update(more)", "os.environ | more"):
        with pytest.raises(AssertionError):
            [*_used("actors/new.py", hidden)]
