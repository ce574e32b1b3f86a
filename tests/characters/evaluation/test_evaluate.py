"""`characters evaluate` from end to end on a model that can do nothing; its figures are not looked at."""

import json

import pytest
from PIL import Image

from characters.cli.main import main
from characters.evaluation import bench
from characters.evaluation.drift import plan
from characters.evaluation.report import Figure

AMOUNT = bench.Amount(
    identities=2, minutes=0.05, clips=1, per_clip=1, clip_chunks=2, check_chunks=1, planted_rows=1, planted_frames=1,
    idle_rows=1, idle_seconds=0.5, edge_seconds=0.2, compared=1, timed_chunks=2, points=(),
)  # fmt: skip


def run(args: list[str]) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["evaluate", *args])
    return exit_.value.code


def test_end_to_end(tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "QUICK", AMOUNT)
    model, weights = tiny_model
    out = tmp_path / "deep" / "out"
    args = ["--model", model, "--weights", str(weights), "--device", "cpu", "--precision", "fp32", "--quick"]
    assert run([*args, "--steps", "1,0.5", "--commit", "clean", "--out", str(out)]) == 0
    report = json.loads((out / "evaluation.json").read_text())
    assert report["schema"] == 1
    asked = {"steps": [1.0, 0.5], "commit": "clean", "context_noise": 0.0}
    assert {name: report["settings"]["sampler"][name] for name in asked} == asked
    assert {"device", "dtype", "amount", "seed", "threads", "seconds"} <= report["settings"].keys()
    keys = {"group", "name", "value", "unit", "at_least", "at_most", "ok"}
    assert all(row.keys() == keys for row in report["figures"])
    assert report["drift"].keys() == {"seconds", "kind", "artefact", "colour", "identity_ratio"}
    assert len(report["drift"]["colour"]) == len(report["drift"]["kind"]) == 2
    names = [(row["group"], row["name"]) for row in report["figures"]]
    assert len(set(names)) == len(names)
    for expected in (
        ("autoencoder", "PSNR"),
        ("autoencoder", "PSNR of the mouth box"),
        ("lip-sync, trained families", "open, correlation"),
        ("lip-sync, trained families", "open, within chunks"),
        ("mouth shape", "round, correlation"),
        ("motion control", "blink, correlation"),
        ("artefact measure", "false alarms"),
        ("silence", "mouth in digital silence, share of speech"),
        ("drift, 2 characters x 0.05 min", "characters with an artefact, at any time"),
    ):
        assert expected in names
    for picture in ("lip-sync.png", "drift.png", "drift-worst.png", "drift-random.png"):
        Image.open(out / picture).verify()
    shown = capsys.readouterr().out
    assert "MISS" in shown
    assert "goals met" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--steps", "1,x"], "--steps is '1,x'"),
        (["--steps", "0.5"], "sampler.steps must start at 1.0"),
        (["--identities", "0"], "--identities is 0"),
        (["--minutes", "nan"], "--minutes is nan"),
        (["--context-noise", "2"], "context_noise"),
        (["--weights", "/nowhere"], "no weights at /nowhere"),
        (["--model", "nobody"], "there is no model 'nobody'"),
    ],
)
def test_bad_input_is_one_line(args, message, tmp_path, capsys):
    assert run([*args, "--device", "cpu", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_in_place_of_the_folder_is_found_out_at_once(tiny_model, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    model, weights = tiny_model
    assert run(["--model", model, "--weights", str(weights), "--device", "cpu", "--out", str(tmp_path / "out")]) == 2
    assert f"cannot write to {tmp_path / 'out'}" in capsys.readouterr().err


def test_drift_is_looked_at_in_its_first_and_last_ten_seconds_and_between():
    assert [(w.first, w.chunks) for w in plan(bench.Amount())] == [(0, 60), (360, 6), (720, 6), (1800, 6), (3540, 60)]
    assert [(w.first, w.chunks) for w in plan(bench.Amount(minutes=0.1))] == [(0, 18), (18, 18)]


def test_a_figure_without_a_value_misses_its_goal():
    assert Figure("g", "n", float("nan"), at_least=0.5).ok is False
    assert Figure("g", "n", float("nan"), at_most=0.5).ok is False
    assert Figure("g", "n", 0.4, at_most=0.5).ok is True
    assert Figure("g", "n", 0.4).ok is None
