"""Serves products of 1024 x 1024 matrices in float32: the most that the machine can do.

The rate is in floating-point operations a second.
"""

from __future__ import annotations

import torch

from benchmarks.serving import asked, serve

SIZE = 1024


def main() -> None:
    """Serves products to the driver."""
    torch.set_num_threads(asked().workers)
    a = torch.randn(SIZE, SIZE)
    b = torch.randn(SIZE, SIZE)
    serve(lambda: a @ b, client_steps=2 * SIZE**3)


if __name__ == "__main__":
    main()
