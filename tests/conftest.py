"""Before anything imports Triton: without a GPU, kernels run under its interpreter, when tests call them by name."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers are as many as the cores
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

pytest_plugins = ["tests.models"]
