"""YAML files checked against dataclasses: an unknown or ill-typed key is an error that names file, line and key."""

from __future__ import annotations

import dataclasses
import io
import re
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from characters.errors import UserError, did_you_mean

T = TypeVar("T")

CONF = Path(__file__).resolve().parents[1] / "conf"
_TEXT = "tag:yaml.org,2002:str"
_GUESSED = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null", "timestamp")}
MAX_BYTES = 1_000_000  # a configuration is a page of text; anything larger is some other file


def conf_names(folder: str) -> list[str]:
    """Names of the files in conf/FOLDER, sorted."""
    return sorted(path.stem for path in (CONF / folder).glob("*.yaml"))


def load_conf(folder: str, name: str, schema: type[T], what: str) -> T:
    """Read conf/FOLDER/NAME.yaml, or any YAML file if `name` is a path that ends in .yaml or .yml.

    Args:
        folder: folder inside conf, e.g. "model".
        name: a file's name without its ending, in upper or lower case, or a path.
        schema: dataclass to check the file against, see `load_yaml`.
        what: what the file holds, for messages, e.g. "model".

    Raises:
        UserError: no file has this name, or one of the errors of `load_yaml`.
    """
    if name.endswith((".yaml", ".yml")):
        return load_yaml(name, schema)
    known = {found.lower(): found for found in conf_names(folder)}
    if name.lower() not in known:
        raise UserError(f"there is no {what} {name!r} in conf/{folder}; {did_you_mean(name, [*known.values()])}")
    return load_yaml(CONF / folder / f"{known[name.lower()]}.yaml", schema)


def load_yaml(path: str | Path, schema: type[T]) -> T:
    """Read a YAML file into an instance of the dataclass `schema`.

    Fields without a default are mandatory. Nested dataclasses, Optional, lists, dicts and enums work as in OmegaConf.
    Its interpolation is off: `${...}` is text, because a file may come from a stranger and `${oc.env:NAME}` would read
    our environment. A schema checks ranges in `__post_init__`; its ValueError is reported as an error of the file.

    Raises:
        UserError: the file is missing, unreadable, empty, not YAML, not a mapping; a key is unknown, missing,
            given twice or has the wrong type; a value is refused by the schema.
    """
    path = Path(path)
    text = _read(path)
    root = _parse(path, text)
    _check_keys(path, root, schema, "")
    changed = _mark_texts(root, schema)
    config = OmegaConf.structured(schema)
    try:
        config = OmegaConf.merge(config, OmegaConf.load(io.StringIO(_literal(text, root, changed))))
        assert isinstance(config, DictConfig)
        missing = OmegaConf.missing_keys(config)
        if missing:
            raise UserError(f"{path}: missing key {', '.join(repr(k) for k in sorted(missing))}")
        return typing.cast(T, OmegaConf.to_object(config))
    except OmegaConfBaseException as e:
        reason = (e.msg or str(e)).splitlines()[0]
        key = e.full_key or e.key
        where = f"{_where(path, root, str(key))}: key {str(key)!r}" if key else str(path)
        raise UserError(f"{where}: {reason}") from e
    except (yaml.YAMLError, RecursionError) as e:  # OmegaConf's loader is stricter than YAML, e.g. on keys given twice
        raise UserError(_syntax(path, e)) from e
    except ValueError as e:
        raise UserError(f"{path}: {e}") from e


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder, not a YAML file")
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise UserError(f"{path} is not a regular file")
        with path.open("rb") as f:
            data = f.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES:,} bytes: not a configuration file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None


def _parse(path: Path, text: str) -> yaml.MappingNode:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as e:
        raise UserError(_syntax(path, e)) from e
    if root is None:
        raise UserError(f"{path} is empty")
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected 'key: value' lines at the top level, found a {root.id}")
    return root


def _mark_texts(node: yaml.Node, expected: Any) -> bool:
    """Make text of what stands in a text field: No, 007, 12:30 and 2024-05-01 are names too. Whether any was found."""
    expected = _unwrap_optional(expected)
    if isinstance(node, yaml.ScalarNode):
        plain = node.style is None and any(c.isdigit() for c in node.value)  # 1e3: OmegaConf takes more for numbers
        if (
            expected is not str
            or node.value in ("", "~")
            or not (node.tag in _GUESSED or (node.tag == _TEXT and plain))
        ):
            return False
        node.tag, node.style = _TEXT, "'"
        return True
    found = False
    args = typing.get_args(expected)
    if isinstance(node, yaml.SequenceNode) and typing.get_origin(expected) in (list, tuple) and args:
        for value in node.value:
            found = _mark_texts(value, args[0]) or found
    if isinstance(node, yaml.MappingNode):
        hints = typing.get_type_hints(expected) if dataclasses.is_dataclass(expected) else {}
        of_all = args[1] if typing.get_origin(expected) is dict and len(args) == 2 else None
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    found = _mark_texts(merged, expected) or found
            else:
                found = _mark_texts(value, hints.get(key.value, of_all)) or found
    return found


def _literal(text: str, root: yaml.MappingNode, found: bool) -> str:
    """`text` with every `${` escaped, so that OmegaConf takes it as text; changes `root`, the tree of `text`.

    `found`: `root` has been changed already.
    """
    seen: set[int] = set()
    nodes: list[yaml.Node] = [root]
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias of a node that is done
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            nodes += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif "${" in node.value:
            found = True
            # OmegaConf's escape: a backslash before `${`, and each backslash that is there already twice.
            node.value = re.sub(r"(\\*)\$\{", r"\1\1\\${", node.value)
    return yaml.serialize(root) if found else text


def _syntax(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{path}:{mark.line + 1}: not valid YAML: {problem}" if mark else f"{path}: not valid YAML: {problem}"


def _check_keys(path: Path, node: yaml.Node, expected: Any, prefix: str) -> None:
    """Walk the YAML tree beside the schema, so that an unknown key is reported with its line."""
    optional, expected = expected, _unwrap_optional(expected)
    if optional is not expected and node.tag == "tag:yaml.org,2002:null":
        return
    if dataclasses.is_dataclass(expected):
        if not isinstance(node, yaml.MappingNode):
            line, name = node.start_mark.line + 1, prefix.removesuffix(".")
            raise UserError(f"{path}:{line}: key {name!r} must hold 'key: value' lines of its own, not a {node.id}")
        hints = typing.get_type_hints(expected)
        known = [f.name for f in dataclasses.fields(expected) if f.init]
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":  # `<<: *anchor`: OmegaConf checks the keys that it adds
                continue
            if key.value not in known:
                name = f"{prefix}{key.value}"
                line = key.start_mark.line + 1
                raise UserError(f"{path}:{line}: unknown key {name!r}; {did_you_mean(str(key.value), known)}")
            _check_keys(path, value, hints[key.value], f"{prefix}{key.value}.")
        return
    args = typing.get_args(expected)
    if isinstance(node, yaml.MappingNode) and typing.get_origin(expected) is dict and len(args) == 2:
        for key, value in node.value:
            _check_keys(path, value, args[1], f"{prefix}{key.value}.")
    if isinstance(node, yaml.SequenceNode) and typing.get_origin(expected) in (list, tuple) and args:
        for i, value in enumerate(node.value):
            _check_keys(path, value, args[0], f"{prefix.removesuffix('.')}[{i}].")


def _unwrap_optional(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _where(path: Path, root: yaml.MappingNode, key: str) -> str:
    """`path:line` of a dotted key, or only the path if the file does not spell the key out."""
    node: yaml.Node = root
    line = None
    for part in key.split("."):
        if not isinstance(node, yaml.MappingNode):
            break
        found = [(k, v) for k, v in node.value if k.value == part]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return f"{path}:{line}" if line else str(path)
