"""Before anything imports Triton: without a GPU, kernels run under its interpreter, when tests call them by name."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
