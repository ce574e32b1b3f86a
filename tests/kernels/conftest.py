"""Kernels run on a GPU where there is one, else under Triton's interpreter on the CPU (see tests/conftest.py)."""

import numpy as np
import pytest
import torch

TORCH_DTYPES = {
    "fp8e4nv": torch.float8_e4m3fn,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


def convert_float(values, input_dtype, output_dtype, _rounding_mode):
    """NumPy bits in, NumPy bits out: a cast that rounds to the nearest even, as the GPU does."""
    given, wanted = TORCH_DTYPES[str(input_dtype)], TORCH_DTYPES[str(output_dtype)]
    integers = {1: np.uint8, 2: np.int16, 4: np.int32}
    bits = np.ascontiguousarray(values).view(integers[given.itemsize])
    numbers = torch.from_numpy(bits).view(given).to(wanted)
    return numbers.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[wanted.itemsize]).numpy()


@pytest.fixture(scope="session")
def device():
    """Where kernels are tested: "cuda", or "cpu" under the interpreter."""
    if torch.cuda.is_available():
        yield "cuda"
        return
    import triton.runtime.interpreter as interpreter

    with pytest.MonkeyPatch.context() as patch:
        # The interpreter's own cast loses the carry of a rounded mantissa (1.97 becomes 1 in FP8), and truncates to
        # bfloat16.
        patch.setattr(interpreter, "_convert_float", convert_float)
        yield "cpu"
