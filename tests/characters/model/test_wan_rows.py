"""A picture split over two processes by rows against the whole one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from characters.model.config import WanVaeConfig
from characters.model.wan_vae.rows import Rows, SplitRows
from characters.model.wan_vae.stream import WanStreams
from characters.model.wan_vae.vae import WanVae
from kernels.comm.breakable_group import BreakableGroup
from kernels.comm.group import open_group

BANDS, SIZE, CHUNKS = 2, (4, 3), 3


def _decode(latents: Tensor, rows: Rows | None = None) -> Tensor:
    torch.manual_seed(0)
    vae = WanVae(WanVaeConfig(encoder_dim=8, decoder_dim=16), 16).eval().requires_grad_(False)
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(5)  # contrast, so that an error would show in bytes
    stream = WanStreams(vae, tuple(latents.shape[-2:]), rows=rows).open()
    stream.reset(latents[:1])
    return torch.stack([stream.decode(latent[None]).clone() for latent in latents[1:]])


def _band(rank: int, folder: str, latents: Tensor) -> None:
    torch.set_num_threads(1)
    group = BreakableGroup(open_group(f"{folder}/meet", rank, BANDS, "cpu"), "cpu")
    torch.save(_decode(latents, SplitRows(group)), f"{folder}/{rank}")
    dist.barrier()
    group.close()
    dist.destroy_process_group()


def test_two_bands_are_the_whole_picture(tmp_path: Path) -> None:
    latents = torch.randn(CHUNKS, 16, *SIZE, generator=torch.Generator().manual_seed(1))
    torch.multiprocessing.spawn(_band, (str(tmp_path), latents), nprocs=BANDS)
    whole = _decode(latents)
    assert whole.shape == (CHUNKS - 1, 4, 48, 24) and whole.float().std() > 5
    for rank in range(BANDS):  # every process has all of it
        assert (torch.load(tmp_path / str(rank)).int() - whole.int()).abs().max() <= 1
