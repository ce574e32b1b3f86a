"""What can be checked of the decoder's measurement without a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from characters.bench import decode
from characters.bench.decode_baseline import eager_chunk, published_decoder
from characters.bench.decode_quality import check_quality
from characters.cli.bench_decode import decode as command
from characters.errors import UserError
from characters.model.config import AutoencoderConfig, DiTConfig, ModelConfig, WanVaeConfig
from kernels.bench.timing import Timing

CPU = torch.device("cpu")
# Two levels instead of four: CPUs are slow in half precision.
WAN = WanVaeConfig(encoder_dim=8, decoder_dim=8, multipliers=[1, 2], temporal=[True], residual_blocks=1)
CONFIG = ModelConfig(
    height=8, width=8, latent_channels=16, latent_stride=2,
    dit=DiTConfig(dim=64, ffn_dim=128, num_heads=4, num_layers=1), autoencoder=AutoencoderConfig(wan=WAN),
)  # fmt: skip
MEASURED = Timing(ms=2.0, first_ms=1.0, watts=3.0, mhz=4.0, times=(2.0,) * 4)


class Replayed:
    """In place of a CUDA graph."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.replay = work


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing and capture as on a GPU, but for the figures; copies and the profile are left to fail."""
    monkeypatch.setattr(decode, "capture", Replayed)
    monkeypatch.setattr(decode, "sustained", lambda graph, seconds, replays: graph.replay() or MEASURED)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)


def told(baseline: Callable[..., float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said until the measurement ended, however it ended."""
    monkeypatch.setattr(decode, "eager_chunk", baseline)
    lines: list[str] = []
    try:
        lines.append(str(decode._time(decode.Job(CONFIG, seconds=0.1), CPU, None, lines.append)))
    except KeyboardInterrupt:
        lines.append("interrupted")
    return lines


@pytest.mark.usefixtures("gpu")
def test_findings_come_one_by_one_and_the_baseline_last(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(lambda *args, tuned: 6.0 if tuned else 8.0, monkeypatch)
    heads = [line.split(":")[0] for line in lines]
    assert heads == [
        "a session's frames", "chunk, launched kernel by kernel", "chunk, captured", "chunk", "memory, all told",
        "convolutions alone", "share of the convolutions' ceiling", "not measured", "not measured",
        "diffusers, eager", "diffusers, eager, convolutions tuned", "False",
    ]  # fmt: skip
    assert "buffers for copies" in lines[7] and "parts" in lines[8]
    assert lines[3] == "chunk: 2.0 ms (goal 55)" and lines[-2].endswith("6.0 ms; speed-up 3.00 (goal 2.9)")
    assert "TFLOP/s" in lines[1] and float(lines[2].split(" TFLOP/s")[0].split(",")[-1]) >= 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_baseline_that_fails_or_is_interrupted_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def baseline(*args: object, tuned: bool) -> float:
        if tuned:
            raise error
        return 8.0

    lines = told(baseline, monkeypatch)
    assert "chunk: 2.0 ms (goal 55)" in lines and "diffusers, eager: 8.0 ms; speed-up 4.00 (goal 2.9)" in lines
    assert ("out of memory" in lines[-2]) == isinstance(error, RuntimeError)
    assert lines[-1] == ("False" if isinstance(error, RuntimeError) else "interrupted")


def test_without_a_clock_the_rest_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("capture", "sustained"):
        monkeypatch.setattr(decode, function, lambda *args: 1 / 0)
    lines = told(lambda *args, tuned: 8.0, monkeypatch)
    assert lines[0].startswith("a session's frames: 0.00 GiB")
    assert any(line.startswith("not measured: chunk, launched") for line in lines)
    assert "diffusers, eager: 8.0 ms" in lines


def test_the_baseline_runs_as_its_users_call_it() -> None:
    theirs = published_decoder(CONFIG, CPU)
    assert eager_chunk(theirs, CONFIG, CPU, tuned=False) > 0
    assert any(x is not None and x.dtype == torch.bfloat16 for x in theirs._feat_map)


def test_float16_is_worth_more_than_bfloat16() -> None:
    found = dict(check_quality(CONFIG, CPU, chunks=2, late=12))
    exact, compact, late, comparison = found.values()
    assert exact > 55 and compact > 45 and late > 45 and comparison < exact - 10


def test_without_a_gpu_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = CliRunner().invoke(command, ["--no-baseline"])
    assert isinstance(result.exception, UserError) and "needs 1 GPU(s) and PyTorch sees 0" in str(result.exception)


def test_convolutions_are_repeated_without_keeping_their_outputs():
    x, weight = torch.randn(2, 8, 6, 6), torch.randn(4, 8, 3, 3)
    out = torch.empty(2, 4, 4, 4).to(memory_format=torch.channels_last)
    recorder, gone = decode.Convolutions(), weakref.ref(out)
    with torch.inference_mode(), recorder:
        torch.ops.aten.convolution.out(x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, out=out)
        F.relu(F.conv2d(x, weight))
    torch.testing.assert_close(out, F.conv2d(x, weight))
    del out
    assert gone() is None
    with FlopCounterMode(display=False) as counter:
        recorder.run()
    assert counter.get_total_flops() == 2 * (2 * 9 * 8 * 4 * 2 * 16)
