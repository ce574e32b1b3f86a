"""The cache shows a chunk exactly what training showed it, for ever."""

import pytest
import torch

from characters.model.config import DiTConfig, ModelConfig, SamplerConfig
from characters.model.dit import DiT
from characters.model.kv_cache import KVCache
from characters.model.rope import Rope3D, split_pairs
from characters.model.sampler import Sampler
from characters.model.sink import Sink
from characters.model.window import ClipWindow
from kernels.write_qkv import rotate_pairs


def tiny_config(**sampler) -> ModelConfig:
    return ModelConfig(
        height=64, width=48, latent_channels=4, latent_stride=16, sink=1, ring=3,
        dit=DiTConfig(
            dim=32, ffn_dim=64, num_heads=2, num_layers=2, patch=1, rope_theta=[20.0, 100.0, 100.0],
            concat_previous=True, concat_reference=True, prediction="x0", residual_reference=True, audio_dim=16,
        ),
        sampler=SamplerConfig(**sampler),
    )  # fmt: skip


@pytest.fixture
def dit() -> DiT:
    torch.manual_seed(0)
    model = DiT(tiny_config()).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def make_cache(dit: DiT, batch: int) -> KVCache:
    config = dit.config
    rope = Rope3D(16, config.grid, config.dit.rope_theta)
    return KVCache(
        layers=2, batch=batch, heads=2, head_dim=16, sink=Sink.chunk(rope, config.ring), ring=config.ring,
        rope=rope, dtype=torch.float64, device="cpu",
    )  # fmt: skip


def test_split_of_a_wan_head():
    assert split_pairs(128) == (22, 21, 21)


def test_rope_depends_on_distance_only_even_after_a_week():
    rope = Rope3D(16, (4, 3), [20.0, 100.0, 100.0])
    q, k = torch.randn(12, 1, 16, dtype=torch.float64), torch.randn(12, 1, 16, dtype=torch.float64)

    def scores(position: int) -> torch.Tensor:
        turned = [rotate_pairs(x, *rope.table(position + d, dtype=torch.float64)) for x, d in ((q, 0), (k, -2))]
        return torch.einsum("qhd,khd->qk", *turned)

    week = 7 * 86400 * 6
    torch.testing.assert_close(scores(week), scores(2), atol=1e-8, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("clips", [1, 2])  # a cache for one goes without the batch axis
def test_cached_chunks_equal_the_whole_clip(dit, clips):
    chunks, c, (h, w) = 9, 4, dit.config.latent_size
    noisy = torch.randn(clips, chunks, c, h, w, dtype=torch.float64)
    previous, reference = torch.randn_like(noisy), torch.randn(clips, c, h, w, dtype=torch.float64)
    level = torch.rand(clips, chunks, dtype=torch.float64)
    tokens = torch.randn(clips, chunks, 16, 32, dtype=torch.float64)
    still = dit.conditioning.reference(clips)

    def with_reference(first, rest):
        return torch.cat((first[:, None], rest), 1).flatten(0, 1)

    window = ClipWindow(
        chunks=chunks, ring=3, rope=Rope3D(16, (h, w), dit.config.dit.rope_theta), dtype=torch.float64, device="cpu"
    )
    whole = dit(
        with_reference(reference, noisy),
        with_reference(torch.zeros(clips), level),
        with_reference(still, tokens),
        window,
        previous=with_reference(reference, previous),
        reference=reference.repeat_interleave(1 + chunks, 0),
    ).unflatten(0, (clips, 1 + chunks))[:, 1:]

    cache = make_cache(dit, clips)
    cache.prefill()
    cache.begin()
    cache.prepare()
    dit(reference, torch.zeros(clips), still, cache, previous=reference, reference=reference)
    cache.commit()
    cache.seal()
    for i in range(chunks):
        for _ in range(2):  # a repeated step overwrites its own slot and nothing else
            cache.begin()
            cache.prepare()
            out = dit(noisy[:, i], level[:, i], tokens[:, i], cache, previous=previous[:, i], reference=reference)
        cache.commit()
        torch.testing.assert_close(out, whole[:, i], atol=1e-5, rtol=1e-5)  # the cache turns K in float32


@torch.inference_mode()
def test_a_step_moves_no_buffer_and_touches_one_slot(dit):
    sampler = Sampler(dit, torch.randn(1, 4, 4, 3, dtype=torch.float64))
    sampler.prefill(dit.conditioning.reference(1))
    cache, tokens = sampler.cache, torch.randn(1, 16, 32, dtype=torch.float64)
    for _ in range(8):
        before, address = cache.values.clone(), cache.values.data_ptr()
        slot = cache.slot(cache.index)
        sampler.sample(tokens)
        changed = (cache.values != before).any(-1).any(-1).any(0)
        assert cache.values.data_ptr() == address
        assert changed.nonzero().flatten().tolist() == list(range(slot.start, slot.stop))


@torch.inference_mode()
def test_a_failed_step_changes_nothing_that_the_next_one_sees(dit, monkeypatch):
    reference, tokens = torch.randn(1, 4, 4, 3, dtype=torch.float64), torch.randn(6, 1, 16, 32, dtype=torch.float64)

    def run(fail_at: int | None) -> torch.Tensor:
        sampler = Sampler(dit, reference, seed=1, config=SamplerConfig(steps=[1.0, 0.5], commit="clean"))
        sampler.prefill(dit.conditioning.reference(1))
        out = []
        for i in range(6):
            if i == fail_at:
                state = sampler._generator.get_state()
                with monkeypatch.context() as patch, pytest.raises(RuntimeError):
                    patch.setattr(dit.head, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("planted")))
                    sampler.sample(tokens[i])
                sampler._generator.set_state(state)
            out.append(sampler.sample(tokens[i]))
        return torch.stack(out)

    assert torch.equal(run(None), run(4))


@torch.inference_mode()
@pytest.mark.parametrize("steps", [[1.0], [1.0, 0.5], [1.0, 0.75, 0.5, 0.25]])
@pytest.mark.parametrize(("commit", "last"), [("reuse", []), ("clean", [0.0])])
def test_commit_modes_leave_the_keys_of_the_pass_they_name(dit, steps, commit, last, monkeypatch):
    sampler = Sampler(dit, torch.randn(1, 4, 4, 3, dtype=torch.float64), config=SamplerConfig(steps, commit))
    sampler.prefill(dit.conditioning.reference(1))
    seen = []
    original = sampler._pass
    monkeypatch.setattr(
        sampler, "_pass", lambda x, level, *a: seen.append(level.level.item()) or original(x, level, *a)
    )
    sampler.sample(torch.randn(1, 16, 32, dtype=torch.float64))
    assert seen == steps + last
    assert sampler.index == 1
