"""Whether a model talks as well under a sequence plan: python -m characters.evaluation.plans

One process and the ranks of a group generate the same clips, characters and motion, over gloo on a CPU or NCCL on GPUs.
One process also generates them with other noise: its spread says how large a difference matters. Characters go one at a
time.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from rich import print
from rich.table import Table
from torch import Tensor

from characters.device import choose_device
from characters.drawing import Identities
from characters.evaluation.bench import Bench, numpy
from characters.evaluation.heldout import by_family, load_heldout
from characters.evaluation.metrics import Agreement, psnr
from characters.evaluation.precision import to_fp8
from characters.evaluation.rollout import rollout
from characters.evaluation.subjects import Speech, draw, heldout_identities, heldout_motion, neutral_portraits
from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan, check_plan
from kernels.comm.exchange import CollectiveExchange, Exchange
from kernels.comm.group import open_group

CHARACTERS = 1  # seed of characters and motion; the noise has its own
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Job:
    """What is generated.

    Attributes:
        model: a model of conf/model, or a path to one; weights: folder, None = the model's own.
        device: "cpu" or "cuda"; ranks take a GPU each.
        precision: of the DiT, a key of PRECISIONS.
        clips: of each voice; chunks: clips are cut to so many, None = never.
    """

    model: str
    weights: Path | None
    device: str
    precision: str
    clips: int
    chunks: int | None = None


class Outcome(NamedTuple):
    """Attributes:
    correlation: of the mouth's opening with the true one. within: of its deviations within chunks.
    decibels: PSNR of the frames against the drawn truth.
    latents: [clips, chunks, channels, h, w].
    """

    correlation: float
    within: float
    decibels: float
    latents: Tensor


def speak(job: Job, ranks: int, seed: int) -> Outcome:
    """Let `ranks` processes generate all clips together, with noise of `seed`.

    Raises:
        UserError: the model's sizes do not allow the plan, or the model or its weights are missing.
    """
    check_plan(ParallelPlan(sequence=ranks), load_model_config(job.model), job.model)
    if ranks == 1:
        return _look(*_speak(job, torch.device(job.device), seed, None))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (job, ranks, seed, folder), nprocs=ranks)
        return Outcome(*torch.load(f"{folder}/outcome", weights_only=True))


def _rank(rank: int, job: Job, ranks: int, seed: int, folder: str) -> None:
    device = torch.device(job.device, rank if job.device == "cuda" else None)
    if device.type == "cpu":
        torch.set_num_threads(1)  # each rank has its share of the cores
    exchange = CollectiveExchange(open_group(f"{folder}/meet", rank, ranks, device), device)
    spoken = _speak(job, device, seed, exchange)
    if rank == 0:  # every rank has the latents
        torch.save(tuple(_look(*spoken)), f"{folder}/outcome")
    exchange.close()
    torch.distributed.destroy_process_group()


class _Scene(NamedTuple):
    """The characters and their clips, one a row."""

    speech: Speech
    who: Identities
    motion: Tensor
    portraits: Tensor


@torch.inference_mode()
def _speak(job: Job, device: torch.device, seed: int, exchange: Exchange | None) -> tuple[Bench, _Scene, Tensor]:
    """One rank's part of the rollouts; the latents of all."""
    sampler = load_model_config(job.model).sampler
    bench = Bench.load(job.model, job.weights, sampler, device, PRECISIONS[job.precision], seed=0)
    heldout = load_heldout()
    if job.precision == "fp8":
        to_fp8(bench, "static", heldout)
    clips = [clip for _, family in sorted(by_family(heldout).items()) for clip in family[: job.clips]]
    speech = Speech.of(clips, job.chunks)
    who = heldout_identities(len(clips), seed=CHARACTERS, device=device)
    motion = heldout_motion(len(clips), speech.chunks, seed=CHARACTERS, device=device)
    portraits = bench.portraits(neutral_portraits(who))
    mel = speech.mel.to(device, bench.dtype)
    latents = torch.cat(
        [
            rollout(
                bench.dit, portraits[row], mel[row], motion[row],
                config=sampler, seed=1000 * seed + row.start, exchange=exchange,
            )
            for row in (slice(i, i + 1) for i in range(len(clips)))
        ]
    )  # fmt: skip
    return bench, _Scene(speech, who, motion, portraits), latents


@torch.inference_mode()
def _look(bench: Bench, scene: _Scene, latents: Tensor) -> Outcome:
    """What the frames show."""
    speech, who, motion, portraits = scene
    true, read, truth, made = [], [], [], []
    for i, count in enumerate(speech.frames):
        row = slice(i, i + 1)
        frames = bench.frames(latents[row], portraits[row], 0, speech.chunks)[:, :count]
        read.append(numpy(bench.read(frames).mouth[0, :, 0]))
        true.append(numpy(speech.mouth[i, :count, 0]))
        one = {name: value[row] for name, value in who.items()}
        truth.append(draw(one, motion[row, :count], speech.mouth[row, :count])[0].cpu())
        made.append(frames[0].cpu())
    found = Agreement.of(true, read)
    decibels = psnr(torch.cat(made).float() / 255, torch.cat(truth).float() / 255)
    return Outcome(found.mean, found.within, decibels, latents.float().cpu())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small")
    parser.add_argument("--weights", type=Path, help="folder; default: the model's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=3, help="of the noise, by one process")
    parser.add_argument("--clips", type=int, default=4, help="of each of the four voices")
    arguments = parser.parse_args()
    device = choose_device(arguments.device).type
    job = Job(arguments.model, arguments.weights, device, arguments.precision, arguments.clips)
    table = Table("plan", "noise", "mouth r", "within chunks", "PSNR, dB", "latents off", title=f"{job}")
    first: Tensor | None = None
    for ranks, seed in [(1, seed) for seed in range(arguments.seeds)] + [(ranks, 0) for ranks in arguments.ranks]:
        outcome = speak(job, ranks, seed)
        first = outcome.latents if first is None else first
        off = ((outcome.latents - first).norm() / first.norm()).item()
        figures = (f"{outcome.correlation:.4f}", f"{outcome.within:.4f}", f"{outcome.decibels:.2f}", f"{off:.1e}")
        table.add_row(f"sequence={ranks}", str(seed), *figures)
    print(table)


if __name__ == "__main__":
    main()
