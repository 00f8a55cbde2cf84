//! The real NCCL of the PyPI wheel, on a machine without a GPU.
