# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks COMMAND ...`: see each command's --help."""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {
    "layers": "convolutions one by one, beside jax.lax and PyTorch",
    "range": "random convolutions of twelve families, beside jax.lax and cuDNN",
    "rule": "where the rule of auto is slower than another engine, on random draws",
    "fit": "what implicit_gemm reckons tiles to take, from times of `rule`",
    "kernels": "what each family of kernels is worth",
    "compare": "two builds of the native module, in turns",
    "layer": "conv, bias and activation, forward and backward, beside jax.lax",
    "sofie": "one GEMM a batch against one GEMM a sample",
    "transposed": "transposed convolutions, beside jax.lax",
    "norms": "a norm and an activation before a convolution, beside jax.lax",
    "deform": "deformable convolution, beside torchvision",
    "causal": "the short causal convolution, beside plain passes and JAX",
    "models": "training and inference steps of whole networks",
    "profile": "what kernels of a row do on the GPU, by Nsight Compute",
    "markdown": "results of `layers` as tables for docs",
    "plans": "writes the table from which plans choose on this device",
}


def main() -> None:
    command, *arguments = sys.argv[1:] or ["--help"]
    if command not in COMMANDS:
        print("usage: python -m benchmarks COMMAND ...\n")
        for name, text in COMMANDS.items():
            print(f"  {name:<10} {text}")
        sys.exit(0 if command in ("-h", "--help") else 2)
    settings(command)
    importlib.import_module(f"benchmarks.{command}").main(arguments)


def settings(command: str) -> None:
    """What has to be set before JAX starts."""
    # Threads of NumPy's BLAS and of PyTorch's OpenMP spin for a while when they
    # are done: on a CPU they would take half a processor from the next side.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Leaves memory to PyTorch, which lives in the same process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
    if command == "models":
        return  # as their users run them
    # Calls that do not depend on each other run one after the other, as layers
    # do: a captured program would otherwise run them side by side.
    flag = "--xla_gpu_command_buffer_scheduling_mode=SERIALIZE"
    if flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


if __name__ == "__main__":
    main()
