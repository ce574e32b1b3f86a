"""What the documents name exists: files, links, functions, commands and their options, modules, routes, metrics."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from characters.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
DOCUMENTS += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy/cluster/README.md"]
ROOMS = ("actors", "characters", "conf", "deploy", "docs", "examples", "kernels", "tests")
FILE = re.compile(rf"^(?:{'|'.join(ROOMS)})/[\w./-]*(?:\.\w+|/)$")
NAME = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?$")

documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def code_spans(text: str) -> list[str]:
    """What stands between backticks on one line, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def shell(text: str) -> list[list[str]]:
    """Commands, as words: of code spans and of fenced blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    written = code_spans(text) + [line for block in blocks for line in block.splitlines()]
    commands = []
    for part in (part for line in written for part in re.split(r"&&|;", line)):
        try:
            words = shlex.split(part)
        except ValueError:  # an apostrophe, or half of a quotation: no command
            continue
        while words and "=" in words[0]:
            words.pop(0)
        if words:
            commands.append([Path(words[0]).name, *words[1:]])
    return commands


def lines(text: str) -> list[str]:
    """Rows of tables, and paragraphs, each as one line; without fenced blocks."""
    found = []
    for paragraph in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.S)):
        found += paragraph.splitlines() if paragraph.startswith("|") else [" ".join(paragraph.split())]
    return found


@cache
def names_of(file: Path) -> frozenset[str]:
    """What a module defines: `function`, `Class`, `Class.method`, `CONSTANT`."""
    found = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse(file.read_text()).body, "")
    return frozenset(found)


@cache
def sources(*folders: str) -> str:
    return "\n".join(file.read_text() for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))


@documents
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert not [link for link in links if link and not (document.parent / link).exists()]


@documents
def test_files_exist(document: Path) -> None:
    named = {span for span in code_spans(document.read_text()) if FILE.match(span) and "NAME" not in span}
    assert not sorted(span for span in named if not (ROOT / span).exists())


@documents
def test_functions_are_in_the_files_beside_them(document: Path) -> None:
    """Where a row or paragraph names Python files, the names beside them are defined in one of them."""
    lost = []
    for line in lines(document.read_text()):
        spans = code_spans(line)
        files = [ROOT / span for span in spans if span.endswith(".py") and FILE.match(span)]
        defined = {name for file in files if file.exists() for name in names_of(file)}
        beside = re.findall(r"`(\w+)` (?:in |of |\()`", line)  # prose has other words in backticks too
        named = [span for span in spans if NAME.match(span) and (line.startswith("|") or "." in span or span in beside)]
        lost += [span for span in named if files and span not in defined and not (ROOT / span).exists()]
    assert not lost


@documents
def test_commands_and_options_exist(document: Path) -> None:
    for words in shell(document.read_text()):
        if words[0] != "characters" or len(words) == 1 or not words[1].islower():
            continue
        command: click.Command = cli
        rest = words[1:]
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            found = command.get_command(click.Context(command), name)
            assert found is not None, f"there is no command {' '.join(words)}"
            command = found
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in rest if word.startswith("--") and word not in known | {"--help"}]
        assert not unknown, " ".join(words)


@documents
def test_modules_exist(document: Path) -> None:
    called = re.findall(rf"python -m ((?:{'|'.join(ROOMS)})[\w.]*)", document.read_text())
    files = {name: ROOT / name.replace(".", "/") for name in called}
    assert not [n for n, f in files.items() if not (f.with_suffix(".py").is_file() or (f / "__main__.py").is_file())]


@documents
def test_routes_and_metrics_exist(document: Path) -> None:
    text = document.read_text()
    routes = set(re.findall(r"`(?:GET|POST|DELETE) (/[^` ]*)`", text))
    assert not sorted(route for route in routes if f'"{route}"' not in sources("deploy/serving"))
    metrics = set(re.findall(r"`(?:ray_)?(characters_\w+?)(?:_total)?`", text))
    assert not sorted(metric for metric in metrics if f'"{metric}"' not in sources("actors", "deploy"))
