# SPDX-License-Identifier: Apache-2.0
"""The layer in PyTorch: conv, bias and activation, forward and backward, replayed from
a CUDA graph. Arrays are JAX's, by DLPack, channels last."""

from __future__ import annotations

import jax

from benchmarks.torch_side import FROM_HWIO, FROM_NHWC, TO_HWIO, TO_NHWC, lead
from jax_convbatch._tune.timing import Side


def activations() -> dict:
    """PyTorch's functions by the names of `jax_convbatch._layers.activations`."""
    from torch.nn import functional

    return {
        "relu": functional.relu,
        "relu6": functional.relu6,
        "leaky_relu": functional.leaky_relu,
        "elu": functional.elu,
        "sigmoid": functional.sigmoid,
        "tanh": functional.tanh,
        "gelu": lambda z: functional.gelu(z, approximate="tanh"),
        "gelu_exact": functional.gelu,
        "silu": functional.silu,
    }


class TorchLayerSide(Side):
    """A side of a measurement: a call for each (x, w, bias, dy) of `sets`."""

    name = "torch"

    def __init__(self, row, activation: str, sets):
        import torch

        self._torch, self._row = torch, row
        self._activation = activations()[activation]
        self.calls = len(sets)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        jax.block_until_ready(sets)
        tensors = {
            id(array): self._tensor(array, order)
            for operands in sets
            for array, order in zip(operands, _ORDERS, strict=True)
        }
        self._sets = [[tensors[id(array)] for array in operands] for operands in sets]
        self._capture()

    def queue(self) -> None:
        self._graph.replay()

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def lead(self):
        return lead()

    def once(self) -> tuple:
        """(y, dx, dw, db) for the first set, by the graph that is timed."""
        self.queue()
        self.wait()
        orders = (TO_NHWC, TO_NHWC, TO_HWIO, (0,))
        out = [
            a.detach().permute(order).contiguous()
            for a, order in zip(self._results[0], orders, strict=True)
        ]
        self.wait()
        return tuple(map(jax.dlpack.from_dlpack, out))

    def _tensor(self, array, order):
        tensor = self._torch.from_dlpack(array)
        if order:
            tensor = tensor.permute(order)
            tensor = tensor.contiguous(memory_format=self._torch.channels_last)
        return tensor

    def _step(self, x, w, bias, dy):
        *_, stride, pad, dilation, groups = self._row
        x, w, bias = (a.detach().requires_grad_() for a in (x, w, bias))
        z = self._torch.nn.functional.conv2d(
            *(x, w, bias), stride, pad, dilation, groups
        )
        y = self._activation(z)
        return y, *self._torch.autograd.grad(y, (x, w, bias), dy)

    def _capture(self) -> None:
        torch = self._torch
        torch.cuda.empty_cache()  # of the last case's graph
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # cudnn.benchmark looks for its algorithms here, before the capture.
            for _ in range(2):
                self._step(*self._sets[0])
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin(capture_error_mode="relaxed")
            # Kept, so that no result lies where the last one did.
            self._results = [self._step(*operands) for operands in self._sets]
            self._graph.capture_end()


_ORDERS = (FROM_NHWC, FROM_HWIO, None, FROM_NHWC)
