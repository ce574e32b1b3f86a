"""`characters models get`, from a hub over HTTP that serves tiny random weights under the published names."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import utils

from characters.checkpoints.install import get, plan_get
from characters.checkpoints.store import read_record
from characters.cli.main import main
from characters.model.config import load_model_config
from tests.characters.checkpoints.published import COMMIT, FILES, Hub, write_config

DIT = FILES[0][2]
NAMES = sorted([name for name, *_ in FILES])
RunFixture = Callable[..., object]


def models_in(store: Path) -> list[str]:
    return sorted(path.name for path in store.glob("[!.]*")) if store.exists() else []


def parts(store: Path) -> list[str]:
    return sorted(path.name for path in store.glob(".*.part/*"))


def test_a_model_comes_whole_and_runs(run: RunFixture, hub: Hub, store: Path, model: str) -> None:
    result = run("models", "get", model)
    assert result.code == 0 and result.out.strip() == str(store / "tiny"), result.err
    assert "Apache-2.0" in result.err and "to download; needs" in result.err and "VAE_Wan/Wan2.1_VAE.pth" in result.err
    assert sorted(path.name for path in (store / "tiny").iterdir()) == sorted([*NAMES, "model.json"])
    kept = read_record(store / "tiny")
    assert kept["dit.safetensors"].published and COMMIT[:12] in kept["dit.safetensors"].source
    assert models_in(store) == ["tiny"] and parts(store) == []

    checked = run("models", "check", model, "--device", "cpu")
    assert checked.code == 0 and "runs: 28 frames of 32 x 48 on cpu" in checked.out, checked.err
    for ignored in ("text_embedding.0.weight", "lm_head.weight", "masked_spec_embed", "audio_proj.proj1.weight"):
        assert f"ignored: {ignored}" in checked.out or f"ignored: wav2vec2.{ignored}" in checked.out
    told = json.loads(run("models", "check", model, "--device", "cpu", "--json").out)
    assert told["fault"] == "" and told["pass"]["frames"] == 28 and {f["name"] for f in told["files"]} == set(NAMES)

    before = len(hub.asked)
    again = run("models", "get", model)
    assert again.code == 0 and "is on this machine" in again.out and len(hub.asked) == before


def test_another_model_takes_the_files_that_are_there(
    run: RunFixture, hub: Hub, store: Path, model: str, tmp_path: Path
) -> None:
    assert run("models", "get", model).code == 0
    other = tmp_path / "other.yaml"
    other.write_text(Path(model).read_text().replace("weights: tiny", "weights: other"))
    hub.asked.clear()
    result = run("models", "get", other)
    assert result.code == 0 and result.err.count("here already") == len(FILES)
    assert not [file for method, file, _ in hub.asked if method == "GET"]
    assert (store / "other" / "dit.safetensors").samefile(store / "tiny" / "dit.safetensors")


def test_a_cut_connection_is_gone_on_with(
    run: RunFixture, hub: Hub, store: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)  # of 10 MB, more than the whole file
    hub.cut[DIT] = 40_000
    assert run("models", "get", model).code == 0
    assert ("GET", DIT, "bytes=36864-") in hub.asked


def forked(work: Callable[[], object], said: Path) -> int:
    """Runs in a process of its own, which has all modules already; what it prints goes to a file. Returns its id."""
    process = os.fork()
    if process:
        return process
    try:
        with open(said, "w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            sys.stdout = sys.stderr = os.fdopen(2, "w")
            work()
    finally:
        sys.stderr.flush()
        os._exit(0)


def test_a_download_that_was_killed_is_gone_on_with(
    run: RunFixture, hub: Hub, store: Path, model: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (published / "head" / DIT).stat().st_size

    class Slow(utils.tqdm):
        def update(self, n: float | None = 1) -> None:
            threading.Event().wait(0.05)

    config = load_model_config(model)
    with monkeypatch.context() as slow:
        slow.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
        slow.setattr("characters.checkpoints.hub._bar", lambda: Slow)
        process = forked(lambda: get(config, plan_get(config)), tmp_path / "said")
    try:
        give_up = time.monotonic() + 60
        while not (found := [p for p in store.glob(".tiny.part/dit.*.part") if p.stat().st_size > 8_192]):
            assert time.monotonic() < give_up, (tmp_path / "said").read_text()
            threading.Event().wait(0.02)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    there = found[0].stat().st_size
    assert 0 < there < size and models_in(store) == []
    assert run("models", "get", model).code == 0
    assert ("GET", DIT, f"bytes={there}-") in hub.asked


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the hub refuses it (401)"),
        (403, "the hub refuses it (403)"),
        (404, "the hub does not have it (404)"),
        (429, "asked too often (429)"),
        (503, "out of order (503)"),
    ],
)
def test_a_hub_that_refuses_is_a_line(
    run: RunFixture, hub: Hub, store: Path, model: str, status: int, message: str
) -> None:
    hub.status[FILES[2][2]] = status
    result = run("models", "get", model)
    assert result.code == 2 and message in result.said and result.said.startswith("error: cannot get meta/wav2vec2")
    assert models_in(store) == [] and parts(store) == [], "nothing is downloaded before all files have been asked about"


def test_a_token_is_sent(run: RunFixture, hub: Hub, store: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status[DIT] = 404
    run("models", "get", model)
    assert not hub.authorised
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    result = run("models", "get", model)
    assert hub.authorised and "hf_secret" not in result.err


def test_no_network_is_a_line(run: RunFixture, store: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    result = run("models", "get", model)
    assert result.code == 2 and "http://127.0.0.1:9 cannot be reached" in result.said and "models import" in result.said
    assert result.err.count("\n") == 1 and not store.exists()


def test_another_file_than_the_published_one_is_refused(
    run: RunFixture, hub: Hub, store: Path, model: str, tmp_path: Path, published: Path
) -> None:
    hub.etags[DIT] = "f" * 64
    result = run("models", "get", model)
    assert result.code == 2 and "it is another file" in result.said and models_in(store) == []
    hub.etags.clear()
    older = write_config(tmp_path / "older.yaml", published, revision="f" * 40)
    assert "is of revision" in run("models", "get", older).said


def test_bytes_that_are_not_what_the_hub_said_are_thrown_away(
    run: RunFixture, store: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without digests in the config, the hub's own are held against what arrives."""
    shutil.copytree(published, tmp_path / "lying")
    model = write_config(tmp_path / "tiny.yaml", published, digests=False, revision="main")
    with Hub(tmp_path / "lying") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.etags[DIT] = "e" * 64
        result = run("models", "get", model)
        assert result.code == 2 and "arrived damaged" in result.said and parts(store) == []
        hub.etags.clear()
        assert run("models", "get", model).code == 0


def test_a_full_disk_is_told_before_and_during(
    run: RunFixture, hub: Hub, store: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("characters.checkpoints.install.shutil.disk_usage", lambda _: usage._replace(free=80 << 20))
    assert run("models", "get", model).code == 0
    shutil.rmtree(store)
    monkeypatch.setattr("characters.checkpoints.install.shutil.disk_usage", lambda _: usage._replace(free=1 << 20))
    hub.asked.clear()
    result = run("models", "get", model)
    assert result.code == 2 and "no room for tiny" in result.said and "CHARACTERS_MODELS" in result.said
    assert not [method for method, *_ in hub.asked if method == "GET"] and models_in(store) == []


def test_a_disk_that_fills_up_is_a_line(hub: Hub, store: Path, model: str, tmp_path: Path) -> None:
    """A limit on a file's size is the nearest to a full disk that a test may have."""

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        main(["models", "get", model])

    os.waitpid(forked(fill, tmp_path / "said"), 0)
    said = (tmp_path / "said").read_text().strip().splitlines()[-1]
    assert said.startswith("error: cannot write") and said.endswith("the disk is full"), said
    assert models_in(store) == []


def test_a_pickle_that_holds_code_is_not_run(
    run: RunFixture, store: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'sprung'}",)

    shutil.copytree(published, tmp_path / "evil")
    torch.save({"proj1.weight": Trap()}, tmp_path / "evil/talk/audio_proj_step_10400.pt")
    model = write_config(tmp_path / "tiny.yaml", tmp_path / "evil")
    with Hub(tmp_path / "evil") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        result = run("models", "get", model)
    assert result.code == 2 and "it was not loaded" in result.said and models_in(store) == []
    assert not (tmp_path / "sprung").exists()
    assert not [name for name in parts(store) if "audio_proj" in name]


def test_the_folder_of_models_is_told_plainly(
    run: RunFixture, hub: Hub, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHARACTERS_MODELS", "models")
    assert "must be an absolute path" in run("models", "get", model).said
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHARACTERS_MODELS", str(tmp_path / "file" / "models"))
    result = run("models", "get", model)
    assert result.code == 2 and str(tmp_path / "file") in result.said
    for name in ("small", "reference-57b"):
        result = run("models", "get", name)
        assert result.code == 2 and "has no files to bring" in result.said
