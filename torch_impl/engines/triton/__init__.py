"""The Triton kernels behind `fused_gpu.py`: attention on a GPU, forward and backward.

`masks.py` can be imported without Triton; `tiles.py`, `forward.py` and `backward.py` cannot.
"""
