"""GPU kernels, one operation a file: the operation, its plain-PyTorch reference, its Triton kernel.

An operation takes its kernel for CUDA tensors while gradients are off, and its reference otherwise (see `dispatch`).
The references serve CPUs, training and batches; they define what the kernels must compute.
"""
