"""One process of tests/characters/model/test_parallel.py: runs its part of every plan."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from characters.model.calibrate import CHUNKS, calibrate
from characters.model.config import DiTConfig, ModelConfig, S2vConfig, SamplerConfig
from characters.model.materialise import RandomWeights, build_dit
from characters.model.plan import ParallelPlan, shards
from characters.model.sampler import Sampler
from kernels.comm.exchange import CollectiveExchange, LocalExchange
from kernels.comm.group import open_group

CHUNKS_MADE = 8  # the ring of 3 wraps twice
PLANS = [ParallelPlan(p, s) for p, s in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (4, 1), (2, 2))]
S2V_PLANS = [ParallelPlan(1, sequence) for sequence in (1, 2, 4)]
PROCESSES = max(plan.gpus for plan in PLANS)


def config() -> ModelConfig:
    return ModelConfig(
        height=64, width=48, latent_channels=4, latent_stride=8, sink=1, ring=3,
        dit=DiTConfig(dim=192, ffn_dim=256, num_heads=12, num_layers=5, patch=2, text_dim=32),
    )  # fmt: skip


def s2v_config() -> ModelConfig:
    """Three latents a chunk, a ring for each pass, and rows of a frame on two ranks."""
    return ModelConfig(
        height=128, width=128, latent_channels=4, latent_stride=8, ring=2, chunk=3,
        dit=DiTConfig(dim=48, ffn_dim=64, num_heads=4, num_layers=3, text_dim=32),
        sampler=SamplerConfig(steps=[1.0, 0.5], commit="level"),
        s2v=S2vConfig(injected=[0, 2]),
    )  # fmt: skip


@torch.inference_mode()
def roll_s2v(plan: ParallelPlan, rank: int, groups: dict[tuple[int, ...], dist.ProcessGroup]) -> Tensor:
    """A rollout of `s2v_config` by a sequence group: [chunks, 3, channels, h, w] on every rank."""
    model = s2v_config()
    dit = build_dit(model, RandomWeights("cpu", torch.float32))
    exchange = LocalExchange("cpu")
    if plan.sequence > 1:
        exchange = CollectiveExchange(groups[tuple(range(plan.sequence))], "cpu")
    draw = torch.Generator().manual_seed(0)
    told = dit.conditioning.text(torch.randn(1, 7, 32, generator=draw))
    reference, clip = (torch.randn(n, 4, *model.latent_size, generator=draw) for n in (1, 19))
    sampler = Sampler(dit, reference, seed=3, exchange=exchange)
    sampler.tell(told)
    sampler.prefill(told, clip=clip)
    sounds = torch.randn(CHUNKS_MADE, 3, 6, 48, generator=draw)
    made = [sampler.sample(sound=(sound[:, :5], sound[:, 5])).clone() for sound in sounds]
    exchange.close()
    return torch.stack(made)


@torch.inference_mode()
def roll(plan: ParallelPlan, rank: int, groups: dict[tuple[int, ...], dist.ProcessGroup], fp8: bool) -> Tensor | None:
    """This rank's part of a rollout: [chunks, channels, h, w] from a rank of the last stage, else None."""
    model, shard = config(), shards(plan, config())[rank]
    dit = build_dit(model, RandomWeights("cpu", torch.float32), layers=shard.layers, fp8="static" if fp8 else None)
    exchange = LocalExchange("cpu")
    if plan.sequence > 1:
        first = rank - shard.rank
        exchange = CollectiveExchange(groups[tuple(range(first, first + plan.sequence))], "cpu")
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(1, 4, *model.latent_size, generator=generator)
    tokens = dit.conditioning.text(torch.randn(1, 7, 32, generator=generator))

    def before(*shape: int) -> Tensor | None:
        if shard.stage == 0:
            return None
        hidden = torch.empty(shape)
        dist.recv(hidden, rank - plan.sequence)
        return hidden

    def hand_on(hidden: Tensor) -> Tensor:
        if shard.stage < plan.pipeline - 1:
            dist.send(hidden.contiguous(), rank + plan.sequence)
        return hidden

    if fp8:
        hand_on(calibrate(dit, reference, tokens, tokens, hidden=before(1 + CHUNKS, model.tokens, 192)))
    sampler = Sampler(dit, reference, seed=3, exchange=exchange)
    sampler.tell(tokens)
    hand_on(sampler.prefill(tokens, before(1, shard.rows, 192)))
    made = [hand_on(sampler.sample(hidden=before(shard.rows, 192))).clone() for _ in range(CHUNKS_MADE)]
    exchange.close()
    return torch.cat(made) if dit.head is not None else None


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    open_group(str(folder / "meet"), rank, PROCESSES, "cpu", timeout=300.0)
    sets = {
        tuple(range(start, start + plan.sequence))
        for plan in PLANS
        for start in range(0, plan.gpus, plan.sequence)
        if plan.sequence > 1
    }
    groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(sets)}
    for plan in PLANS:
        for fp8 in (False, True):
            made = roll(plan, rank, groups, fp8) if rank < plan.gpus else None
            if made is not None:
                torch.save(made, folder / f"{plan},{'fp8' if fp8 else 'full'},{rank}")
    for plan in S2V_PLANS:
        if rank < plan.gpus:
            torch.save(roll_s2v(plan, rank, groups), folder / f"{plan},s2v,{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
