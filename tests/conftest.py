"""Before anything imports Triton: without a GPU, kernels run under its interpreter, when tests call them by name."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers are as many as the cores
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

pytest_plugins = ["tests.models"]
# What keeps time with a clock, with processes that Ray starts, with a media server or a browser.
REAL_TIME = (
    "actors/channels",
    "actors/pipeline/test_gang.py",
    "actors/pipeline/test_split",
    "actors/room",
    "actors/voice/test_stt.py",
    "actors/voice/test_tts.py",
    "actors/voice/test_turn.py",
    "actors/voice/test_voice_bridge.py",
    "characters/cli/test_main.py",
    "deploy/browser",
    "deploy/load",
    "deploy/serving/test_gate.py",
    "deploy/serving/test_pipeline.py",
    "deploy/test_",
    "kernels/comm/test_exchange.py",
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks by name. Those that run in real time may each fail once: on two cores a moment can be missed."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(REAL_TIME):
            item.add_marker("real_time")
            item.add_marker(pytest.mark.flaky(reruns=1))
            item.add_marker(pytest.mark.timeout(400))  # longer than their own waits
        if "espeak" in item.nodeid or "flite" in item.nodeid:
            item.add_marker("system")
