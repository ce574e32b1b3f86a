"""The shipped weights still talk: a short rollout on the CPU."""

import torch

from characters.evaluation.bench import Bench
from characters.evaluation.heldout import load_heldout
from characters.evaluation.lipsync import generate
from characters.model.config import load_model_config


def test_two_heldout_sentences_are_lip_synced():
    sampler = load_model_config("small").sampler
    bench = Bench.load("small", None, sampler, torch.device("cpu"), torch.float32, seed=0)
    clips = {clip.name: clip for clip in load_heldout()}
    chosen = [next(c for name, c in clips.items() if name.startswith(family)) for family in ("hibari", "espeak")]
    curves = generate(bench, chosen, per_clip=1, limit=24)
    found = curves.agreement("open")
    assert found.mean >= 0.8
    assert abs(found.lag_frames) <= 1
    assert found.within >= 0.6
