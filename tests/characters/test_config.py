from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from characters.config import conf_names, load_conf, load_yaml
from characters.errors import UserError


@dataclass(frozen=True)
class Wheel:
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise ValueError("radius must be positive")


@dataclass(frozen=True)
class Car:
    name: str
    wheel: Wheel = field(default_factory=Wheel)
    spare: Wheel | None = None
    more: list[Wheel] = field(default_factory=list)
    seats: int | None = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "car.yaml"


def test_reads_nested_dataclasses(file: Path) -> None:
    file.write_text("name: a\nwheel: {radius: 2}\nspare:\nmore:\n  - radius: 3\n")
    assert load_yaml(file, Car) == Car("a", Wheel(2.0), None, [Wheel(3.0)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nwheel:\n  radios: 1\n", "car.yaml:3: unknown key 'wheel.radios'; did you mean 'radius'?"),
        ("name: a\nmore:\n  - {size: 1}\n", "car.yaml:3: unknown key 'more[0].size'; known: radius"),
        ("name: a\nseats: 1.5\n", "car.yaml:2: key 'seats': Value '1.5' of type 'float' could not be converted"),
        ("name: a\nwheel:\n  radius: big\n", "car.yaml:3: key 'wheel.radius': Value 'big'"),
        ("name: a\nwheel: 3\n", "car.yaml:2: key 'wheel' must hold 'key: value' lines"),
        ("name: [a]\n", "car.yaml:1: key 'name'"),
        ("name:\n", "car.yaml:1: key 'name'"),
        ("seats: 3\n", "car.yaml: missing key 'name'"),
        ("name: a\nname: b\n", "car.yaml:2: not valid YAML: found duplicate key"),
        ("name: a\n\tseats: 1\n", "car.yaml:2: not valid YAML"),
        ("name: !!python/object:os.system x\n", "car.yaml:1: not valid YAML"),
        ("name: a\nseats: ${seats}\n", "car.yaml:2: key 'seats': While"),
        ("name: a\nwheel: {radius: -1}\n", "car.yaml: radius must be positive"),
        ("", "car.yaml is empty"),
        ("# only a comment\n", "car.yaml is empty"),
        ("- a\n", "expected 'key: value' lines at the top level, found a sequence"),
        ("car\n", "expected 'key: value' lines at the top level, found a scalar"),
    ],
)
def test_names_file_line_and_key(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as error:
        load_yaml(file, Car)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}",
        "${name}",
        "costs ${",
        "\\${x}",
        "\\\\${x}\\",
        "$${${}}",
        "a: '${b}'\n\n- #c",
        "$\\{",
        "$ {a}",
        "é${",
    ],
)
def test_what_looks_like_interpolation_is_text(file: Path, text: str) -> None:
    file.write_text(yaml.safe_dump({"name": text}, allow_unicode=True))
    assert load_yaml(file, Car).name == text
    file.write_text("name: &n '${" + "x}'\nwheel: &w\n  radius: 2\nspare: *w\n")
    assert load_yaml(file, Car) == Car("${x}", Wheel(2.0), Wheel(2.0))


def test_what_is_no_text(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_yaml(file, Car)
    with pytest.raises(UserError, match="is a folder"):
        load_yaml(tmp_path, Car)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UserError, match="not a regular file"):
        load_yaml(tmp_path / "pipe.yaml", Car)
    with pytest.raises(UserError, match="File name too long"):
        load_yaml(tmp_path / f"{'x' * 300}.yaml", Car)
    file.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load_yaml(file, Car)
    file.write_bytes(b"#" * 2_000_000)
    with pytest.raises(UserError, match="larger than"):
        load_yaml(file, Car)


def test_a_name_or_a_path(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("characters.config.CONF", tmp_path)
    (tmp_path / "cars").mkdir()
    for name in ("Beetle", "mini"):
        (tmp_path / "cars" / f"{name}.yaml").write_text(f"name: {name}\n")
    file.write_text("name: mine\n")
    assert conf_names("cars") == ["Beetle", "mini"]
    for name, expected in (("mini", "mini"), ("beetle", "Beetle"), (str(file), "mine")):
        assert load_conf("cars", name, Car, "car").name == expected
    with pytest.raises(UserError, match=r"there is no car 'betle' in conf/cars; did you mean 'Beetle'\?"):
        load_conf("cars", "betle", Car, "car")
    with pytest.raises(UserError, match=r"none\.yaml does not exist"):
        load_conf("cars", str(tmp_path / "none.yaml"), Car, "car")
    with pytest.raises(UserError, match="there is no car"):
        load_conf("cars", "../cars/mini", Car, "car")
