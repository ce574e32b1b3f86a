"""Milliseconds per chunk of a real stream: one character, chunk by chunk."""

from __future__ import annotations

import time

import numpy as np
import torch

from characters.chunk import SAMPLES_PER_CHUNK
from characters.evaluation.bench import Amount, Bench
from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.report import Figure
from characters.evaluation.subjects import Speech, heldout_identities, neutral_portraits
from characters.generate.hearing import LogMel, windows
from characters.generate.networks import Networks
from characters.generate.stream import Stream

WARM_UP = 6  # chunks
STAGES = {"audio": "conditioning", "dit": "DiT", "decode": "decoder"}


def measure(bench: Bench, amount: Amount, clips: list[HeldoutClip]) -> list[Figure]:
    """Median and 99th percentile by stage, and of the whole, after a warm-up."""
    model = Networks(bench.config, bench.dit, bench.autoencoder)
    portrait = neutral_portraits(heldout_identities(1, seed=bench.seed, device=bench.device))
    stream = Stream(model, portrait[0].permute(1, 2, 0).cpu().numpy(), seed=bench.seed)
    count = WARM_UP + amount.timed_chunks
    heard = windows(Speech.tracks(clips, 1, count, bench.seed).mel[0], 0, count).numpy()
    quiet = np.zeros(SAMPLES_PER_CHUNK, np.float32)
    timings = [stream.step(window, quiet).timings for window in heard][WARM_UP:]
    figures = []
    where = f"{bench.device.type}, {str(bench.dtype).removeprefix('torch.')}"
    threads = f", {torch.get_num_threads()} threads" if bench.device.type == "cpu" else ""
    group = f"time per chunk, {where}{threads}"
    mel = 1e3 * np.array(_seconds_of_mel(count)[WARM_UP:])
    figures.append(Figure(group, "mel spectrogram on the CPU, median", float(np.median(mel)), "ms", at_most=1.0))
    for stage, name in STAGES.items():
        spent = [1e3 * t[stage] for t in timings]
        figures.append(Figure(group, f"{name}, median", float(np.median(spent)), "ms"))
        figures.append(Figure(group, f"{name}, p99", float(np.percentile(spent, 99)), "ms"))
    whole = [1e3 * sum(t.values()) for t in timings]
    goal = 80.0 if bench.device.type == "cpu" else 6.0
    figures.append(Figure(group, "whole, median", float(np.median(whole)), "ms", at_most=goal))
    figures.append(Figure(group, "whole, p99", float(np.percentile(whole, 99)), "ms"))
    return figures


def _seconds_of_mel(chunks: int) -> list[float]:
    """Seconds that each chunk of a signal takes. The sound makes no difference."""
    rng, stream, spent = np.random.default_rng(0), LogMel(), []
    for _ in range(chunks):
        sound = rng.uniform(-0.5, 0.5, SAMPLES_PER_CHUNK).astype(np.float32)
        start = time.perf_counter()
        stream.push(sound)
        spent.append(time.perf_counter() - start)
    return spent
