"""What all training stages share: the schedule, several GPUs, averaged weights, resuming, log lines."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from characters.device import choose_device
from characters.training.muon import Muon
from characters.training.recipe import Stage


@dataclass(frozen=True)
class Workers:
    """This process among those that train together: several if torchrun started them, else one."""

    rank: int
    count: int
    device: torch.device

    @staticmethod
    def join(device: str) -> Workers:
        """Join the process group that torchrun describes in the environment, if it does.

        Raises:
            UserError: `device` is unknown or missing.
        """
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        if count > 1:
            local = int(os.environ["LOCAL_RANK"])
            chosen = choose_device(f"cuda:{local}" if device.startswith("cuda") else device)
            if chosen.type == "cuda":
                torch.cuda.set_device(chosen)
            if not dist.is_initialized():
                dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
            return Workers(rank, count, chosen)
        return Workers(0, 1, choose_device(device))

    def leave(self) -> None:
        """Leave the process group."""
        if self.count > 1:
            dist.destroy_process_group()

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in place."""
        if self.count == 1:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(part.view_as(t))

    def agree(self, value: float) -> float:
        """The largest value of any process."""
        if self.count == 1:
            return value
        tensor = torch.tensor(value, device=self.device, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.item()


class Average:
    """Exponential moving average of a module's parameters; the average is what ships."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.tensors = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the average towards the module's parameters."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(self.tensors.values()), [p.detach() for p in module.parameters()], 1 - decay)

    def copy_to(self, module: nn.Module) -> None:
        """Write the average into a module."""
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(self.tensors[name])


class Training:
    """One stage's run: an iterator over steps that logs, saves its state and can be resumed.

    Args:
        name: name of the stage, for files and log lines.
        stage: its numbers.
        module: the network to train.
        optimisers: with the peak learning rate in each group's "lr".
        workers: this process.
        folder: where state and log are written.
        average: decay of the weight average.
        log_every: steps between log lines.
    """

    SAVE_SECONDS = 120.0
    WARM_UP = 150

    def __init__(
        self,
        name: str,
        stage: Stage,
        module: nn.Module,
        optimisers: list[torch.optim.Optimizer],
        workers: Workers,
        folder: Path,
        *,
        average: float,
        log_every: int,
    ) -> None:
        self.name, self.stage, self.module, self.optimisers = name, stage, module, optimisers
        self.workers, self.folder, self.log_every = workers, folder, log_every
        self.average = Average(module, average)
        self.step, self.elapsed = 0, 0.0
        self._agreed = 0.0
        self._peaks = [[g["lr"] for g in o.param_groups] for o in optimisers]
        self._sums: dict[str, Tensor] = {}
        self._log: list[dict[str, float]] = []
        self._load()

    @property
    def progress(self) -> float:
        """Share of the schedule that is done, 0 to 1. The same in every worker, because it sets the learning rate."""
        done = self.step / self.stage.steps
        if self.stage.seconds > 0:
            done = max(done, self._agreed / self.stage.seconds)
        return min(done, 1.0)

    def steps(self) -> Iterator[float]:
        """Yield the progress before each step until the schedule ends; call `update` once in between."""
        bar = tqdm(
            total=self.stage.steps, initial=self.step, desc=self.name, disable=self.workers.rank > 0, mininterval=5
        )
        saved = time.monotonic()
        clock = None
        self._agreed = self.workers.agree(self.elapsed)
        while self.progress < 1:
            yield self.progress
            self.step += 1
            bar.update()
            now = time.monotonic()
            # The first steps compile kernels, which is not training time.
            if clock is not None:
                self.elapsed += now - clock
            if clock is not None or self.step % 4 == 0:
                clock = now
            if self.step % 10 == 0:
                self._agreed = self.workers.agree(self.elapsed)
            if self.step % self.log_every == 0:
                self._write_log()
            if now - saved > self.SAVE_SECONDS:
                self._save()
                saved = now
        bar.close()
        self._save()

    def update(self, loss: Tensor, clip: float = 1.0, **figures: Tensor) -> None:
        """Backward pass, mean of the gradients over the workers, optimiser step, average. `figures` go to the log."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        params = [p for p in self.module.parameters() if p.grad is not None]
        self.workers.average([p.grad for p in params])
        norm = nn.utils.clip_grad_norm_(params, clip)
        rate = self._rate()
        for optimiser, peaks in zip(self.optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            optimiser.step()
        self.average.update(self.module)
        for key, value in {"loss": loss, "gradient": norm, **figures}.items():
            total = self._sums.setdefault(key, torch.zeros((), device=self.workers.device))
            total += value.detach()

    def _rate(self) -> float:
        """Warm up, hold, then fall linearly over the last 60 % of the schedule."""
        warm = min(1.0, (self.step + 1) / self.WARM_UP)
        return warm * min(1.0, max(0.01, (1 - self.progress) / 0.6))

    def _write_log(self) -> None:
        line = {"step": self.step, "seconds": round(self.elapsed, 1)}
        line |= {key: float(value) / self.log_every for key, value in self._sums.items()}
        self._sums.clear()
        if not math.isfinite(line["loss"]):
            raise RuntimeError(f"{self.name}: the loss is not finite at step {self.step}")
        self._log.append(line)
        if self.workers.rank == 0:
            tqdm.write(f"{self.name} " + "  ".join(f"{key} {value:.5g}" for key, value in line.items()))

    @property
    def _state_file(self) -> Path:
        return self.folder / f"{self.name}.state.pt"

    def _save(self) -> None:
        if self.workers.rank > 0:
            return
        state = {
            "step": self.step,
            "elapsed": self.elapsed,
            "module": self.module.state_dict(),
            "average": self.average.tensors,
            "average_steps": self.average.steps,
            "optimisers": [o.state_dict() for o in self.optimisers],
            "log": self._log,
        }
        part = self._state_file.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._state_file)
        (self.folder / f"{self.name}.log.json").write_text(json.dumps(self._log))

    def _load(self) -> None:
        if not self._state_file.is_file():
            return
        state = torch.load(self._state_file, map_location=self.workers.device, weights_only=True)
        self.step, self.elapsed, self._log = state["step"], state["elapsed"], state["log"]
        self.module.load_state_dict(state["module"])
        self.average.tensors = state["average"]
        self.average.steps = state["average_steps"]
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        if self.workers.rank == 0:
            tqdm.write(f"{self.name}: resumed at step {self.step}")


def split_optimisers(
    module: nn.Module, stage: Stage, device: torch.device, is_matrix: Callable[[str, Tensor], bool]
) -> list[torch.optim.Optimizer]:
    """Muon for the parameters that `is_matrix(name, parameter)` picks, AdamW for the rest.

    With a `muon_rate` of 0 AdamW takes all of them.
    """
    named = list(module.named_parameters())
    matrices = [p for name, p in named if stage.muon_rate > 0 and is_matrix(name, p)]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    adam = torch.optim.AdamW(rest, stage.learning_rate, (0.9, 0.98), weight_decay=0.0, fused=device.type == "cuda")
    return [adam, Muon(matrices, stage.muon_rate)] if matrices else [adam]


def in_batches(count: int, size: int, work: Callable[[slice], None]) -> None:
    """Call work(slice) over range(count) in pieces of `size`."""
    for start in range(0, count, size):
        work(slice(start, min(start + size, count)))
