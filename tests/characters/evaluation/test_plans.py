"""The trained model under a sequence plan, over gloo, against one process."""

import pytest
import torch

from characters.errors import UserError
from characters.evaluation.plans import Job, speak


def test_two_ranks_talk_like_one_process():
    job = Job("small", None, "cpu", "fp32", clips=1, chunks=6)
    one, two = speak(job, 1, 0), speak(job, 2, 0)
    assert one.latents.shape == (4, 6, 48, 17, 11)
    assert (two.latents - one.latents).norm() < 1e-3 * one.latents.norm()
    # Far less than what other noise makes of it.
    other = speak(job, 1, 1)
    assert (other.latents - one.latents).norm() > 20 * (two.latents - one.latents).norm()
    assert two.correlation == pytest.approx(one.correlation, abs=1e-3)
    assert two.within == pytest.approx(one.within, abs=2e-3)
    assert two.decibels == pytest.approx(one.decibels, abs=0.01)
    assert one.correlation > 0.8 and torch.isfinite(one.latents).all()


def test_a_plan_that_the_model_does_not_allow_is_refused_before_anything_starts():
    with pytest.raises(UserError, match="sequence must divide the number of heads, 4"):
        speak(Job("small", None, "cpu", "fp32", clips=1), 3, 0)
