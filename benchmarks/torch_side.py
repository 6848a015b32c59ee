# SPDX-License-Identifier: Apache-2.0
"""The same convolution in PyTorch: cuDNN from a CUDA graph, or oneDNN on the CPU.

cuDNN's fastest algorithm (`cudnn.benchmark`), channels last, replayed from a graph:
nothing of PyTorch's own is in the time. Arrays are JAX's, by DLPack.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time

import jax

from benchmarks.cases import ROLES, Operation
from benchmarks.torch_conv import TorchConv
from jax_convbatch._tune.timing import Side

# Where an axis of PyTorch's order lies in ours: NCHW in NHWC, OIHW in HWIO.
FROM_NHWC, FROM_HWIO = (0, 3, 1, 2), (3, 2, 0, 1)
TO_NHWC, TO_HWIO = (0, 2, 3, 1), (2, 3, 1, 0)
# Seconds of a call that makes a round by itself: one of many would take minutes.
SLOW = 0.02


def problem(platform: str) -> str | None:
    """Why this peer cannot run, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    if platform == "gpu" and not torch.cuda.is_available():
        return "this PyTorch has no CUDA"
    return None


def name(platform: str) -> str:
    """Of this peer in results."""
    return "torch" if platform == "gpu" else "onednn"


def lead():
    """As `timing.Side.lead`, on PyTorch's stream."""
    import torch

    a, b = _copied()
    for _ in range(16):
        torch.neg(a, out=b)
    end = torch.cuda.Event()
    end.record()

    def ended() -> bool:
        late = end.query()
        while not end.query():
            pass
        return late

    return ended


@functools.cache
def _copied():
    import torch

    a = torch.ones(64 << 20, device="cuda")
    return a, torch.empty_like(a)


class TorchSide(Side):
    """Times `case` with the given sets of operands (JAX arrays).

    Raises:
      Inexpressible: PyTorch has no such convolution.
    """

    def __init__(self, case: Operation, first, second):
        import torch

        self._torch = torch
        self._case = case
        self._conv = TorchConv(case.window, case.shape)
        self._gpu = jax.default_backend() == "gpu"
        self.name = name(jax.default_backend())
        exact = case.precision in ("high", "highest")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = not exact
        torch.backends.cuda.matmul.allow_tf32 = not exact
        jax.block_until_ready((first, second))
        sets = [
            [self._tensor(role, a) for a in operands]
            for role, operands in zip(self._roles, (first, second), strict=True)
        ]
        pairs = case.pairs(jax.default_backend())
        self._rounds = [(sets[0][i], sets[1][j]) for i, j in pairs]
        self._turn = 0
        self._unread = None
        if case.op != "fprop":
            dtype, device = sets[0][0].dtype, sets[0][0].device
            self._unread = self._conv.unread(case.op, dtype, device)
        self.calls = len(pairs) if self._gpu else 1
        if self._gpu:
            self._capture()

    @property
    def _roles(self) -> str:
        return ROLES[self._case.op][:2]

    def queue(self) -> None:
        if self._gpu:
            self._graph.replay()
            return
        self._result = self._one(*self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        if self._gpu:
            self._torch.cuda.synchronize()

    def lead(self):
        return lead() if self._gpu else None

    def alone(self) -> None:
        """Starts one call by itself, not from the graph."""
        self._one(*self._rounds[0])

    def once(self, first, second) -> jax.Array:
        """The result for these operands."""
        a, b = (
            self._tensor(role, array)
            for role, array in zip(self._roles, (first, second), strict=True)
        )
        result = self._conv.array(ROLES[self._case.op][2], self._one(a, b))
        self.wait()
        return jax.dlpack.from_dlpack(result)

    def _tensor(self, role: str, array):
        return self._conv.tensor(role, self._torch.from_dlpack(array))

    def _one(self, a, b):
        if self._case.op == "fprop":
            return self._conv.fprop(a, b)
        return getattr(self._conv, self._case.op)(a, b, self._unread)

    def _capture(self) -> None:
        torch = self._torch
        torch.cuda.empty_cache()  # of the last case's graph
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            # cudnn.benchmark looks for its algorithm here, before the capture.
            for _ in range(2):
                start = time.perf_counter()
                self._one(*self._rounds[0])
                torch.cuda.synchronize()
            if time.perf_counter() - start > SLOW:
                self._rounds = self._rounds[:1]
                self.calls = 1
            # Not `torch.cuda.graph`, which collects garbage first (0.2 s).
            self._graph = torch.cuda.CUDAGraph()
            # Relaxed: JAX may let go of an old program meanwhile, in any thread.
            self._graph.capture_begin(capture_error_mode="relaxed")
            try:
                # Kept, so that no result lies where the last one did.
                self._results = [self._one(a, b) for a, b in self._rounds]
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error is told
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
