# SPDX-License-Identifier: Apache-2.0
"""The native modules: which can be used, and why not where one cannot.

`load` registers the FFI targets of every native module that loads, and `warn` says
where one that should be there is missing. Neither starts a JAX backend.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import jax

from jax_convbatch._native import built
from jax_convbatch._shapes.geometry import ConvGeometry

# Platform as the plan names it: the module, and the platform as JAX names it.
_MODULES = {"cpu": ("_cpu", "cpu"), "cuda": ("_cuda", "CUDA")}

_natives: dict[str, _Native] = {}  # by platform as the plan names it

# What exists where an NVIDIA GPU can be used; also in cmake/cuda_choice.cmake.
_GPU_SIGNS = (
    "/dev/nvidia[0-9]*",
    "/proc/driver/nvidia/gpus/*",
    "/usr/lib/wsl/lib/libcuda.so*",
)


def load() -> None:
    """Loads the native modules, and registers what they have."""
    _natives.update({platform: _load(platform) for platform in _MODULES})


def warn(stacklevel: int) -> None:
    """Warns where a module that should be there is missing, and of a setting that says
    nothing."""
    for message in (_warning(), _warning_of_threads()):
        if message:
            warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)


def default_platform() -> str:
    """Where JAX runs by default, by the plan's names ("cuda", not "gpu")."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = device or jax.default_backend()
    backend = device if isinstance(device, str) else device.platform
    return name_of(backend)


def name_of(platform: str) -> str:
    """The plan's name for a platform that JAX has two for."""
    return "cuda" if platform == "gpu" else platform


def available(platform: str) -> bool:
    """Whether native code for a platform ("cpu", "cuda", ...) can be used."""
    return problem(platform) is None


def problem(platform: str) -> str | None:
    """Why no native code for a platform can be used, or None where it can."""
    if platform not in _natives:
        return f"jax_convbatch has no native code for platform {platform!r}"
    found = _natives[platform].problem
    return found or (_too_old() if platform == "cuda" else None)


def _too_old() -> str | None:
    """Why nothing that was compiled runs on JAX's first GPU, or None."""
    capability = _gpu().capability
    if capability == "unknown" or _at_least_8(capability):
        return None
    return (
        f"jax_convbatch is compiled for GPUs of compute capability {OLDEST} and later, "
        f"and {_gpu().name} has {capability}"
    )


def modules() -> list[ModuleType]:
    """The native modules that can be used."""
    return [n.module for n in _natives.values() if n.module is not None]


def build_info() -> dict[str, dict[str, str]]:
    """What each usable native module was compiled with, by platform."""
    return {
        platform: dict(native.module.build_info()) | built.headers()
        for platform, native in _natives.items()
        if native.module is not None
    }


def instruction_set() -> str:
    """Which of its kernels the CPU module uses: "avx512", "avx2" or "portable"."""
    return build_info()["cpu"]["instructions"]


def implicit_gemm_plans(
    op: str, geometry: ConvGeometry, dtype: str, exact: bool = False
) -> list[dict[str, Any]] | str:
    """Every way the CUDA kernels run a convolution, or why they cannot.

    Args:
      op: "fprop", "dgrad" or "wgrad".
      geometry: a `ConvGeometry`.
      dtype: "bfloat16", "float16" or "float32" (multiplied as TF32 where there is
        one group, groups are wide, or depthwise filters have many taps).
      exact: multiply float32 as it is.

    Returns:
      [{"config": name, "workspace": bytes}, ...], the rule's first, or a reason.
    """
    module = _natives["cuda"].module
    if module is None:
        return "this: the cuda module is not there"
    gpu = _gpu()
    grouped = geometry.groups > 1
    exact = exact and dtype == "float32"
    if (grouped or exact) and not _at_least_8(gpu.capability):
        what = "groups" if grouped else "float32"
        return f"{what} on a GPU of compute capability {gpu.capability} (8.0 or later)"
    if not grouped and not exact and gpu.capability != HOPPER:
        return f"a GPU of compute capability {gpu.capability} (it needs 9.0, Hopper)"
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    native = module.implicit_gemm_plans(
        op, fields, dtype, gpu.multiprocessors, gpu.capability == HOPPER, exact
    )
    if native:
        return native
    if grouped:
        page = "docs/contributing/direct_kernels.md"
        return f"{geometry.groups} groups of this kind (see {page})"
    if exact:
        return "this geometry in true float32 (see docs/contributing/true_f32.md)"
    return "a geometry that the copy engine or the tiles cannot express"


def implicit_gemm_tiles(
    op: str, geometry: ConvGeometry, dtype: str, multiprocessors: int
) -> list[dict[str, Any]]:
    """The tiles of a convolution of one group that the CUDA kernels choose among.

    Args:
      op: "fprop" or "dgrad".
      geometry: a `ConvGeometry`.
      dtype: as in `implicit_gemm_plans`; float32 is multiplied as TF32.
      multiprocessors: of the GPU to plan for.

    Returns:
      [{"config": name, "us": what it is reckoned to take, ...}, ...], empty where the
      module is not there.
    """
    module = _natives["cuda"].module
    if module is None:
        return []
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    return module.implicit_gemm_tiles(op, fields, dtype, multiprocessors)


def leave_out(families: Sequence[str]) -> None:
    """Has CUDA plans do without families of kernels, and with all others.

    Args:
      families: as ffi/cuda/common/left_out.cc names them. For measurements.

    Raises:
      ValueError: an unknown one.
    """
    module = _natives["cuda"].module
    assert module is not None  # problem() was asked
    module.leave_out(list(families))


def causal_sums(platform: str, shape: tuple[int, ...], taps: int, dilation: int) -> int:
    """How many partial sums the gradient of a short causal convolution stores.

    Args:
      platform: by the plan's name, with native code.
      shape: of x, [G, N, L, C].
      taps, dilation: of the filter.
    """
    module = _natives[platform].module
    assert module is not None  # problem() was asked
    return module.causal_conv1d_sums(*shape, taps, dilation)


def cuda() -> tuple[ModuleType | None, Gpu]:
    """The module for CUDA, and JAX's first GPU to plan for."""
    return _natives["cuda"].module, _gpu()


def cudnn_problem() -> str | None:
    """Why cuDNN cannot be used, or None. Loads it the first time."""
    module = _natives["cuda"].module
    if module is None:
        return _natives["cuda"].problem
    if _gpu().capability == "unknown":
        return "JAX has no CUDA device to plan for"
    return module.load_cudnn(_of_nvidia_wheels("cudnn/lib/libcudnn.so.9")) or None


def cudnn_version() -> str:
    """Of the library that is used, such as "9.19.0"; "" without one."""
    module = _natives["cuda"].module
    return "" if module is None or cudnn_problem() else module.cudnn_version()


@functools.lru_cache(maxsize=4096)
def cudnn_plans(
    op: str,
    geometry: ConvGeometry,
    dtype: str,
    out_dtype: str,
    tf32: bool,
    layer: tuple[tuple[str, Any], ...],
    workspace_limit: int,
    most: int,
) -> list[dict[str, Any]] | str:
    """Ways to run a convolution by cuDNN on JAX's first GPU, or why there are none.

    Args:
      op, geometry, dtype: as in `implicit_gemm_plans`.
      out_dtype: of the result.
      tf32: whether float32 may be multiplied as TF32.
      layer: items of `Epilogue.attribute()`, or nothing.
      workspace_limit: bytes.
      most: how many.

    Returns:
      [{"config": name, "workspace": bytes, "compiled": whether its kernel is compiled
      for it, "depends_on_batch": whether a sample's bits may}, ...], the heuristics'
      first, or a reason.
    """
    module = _natives["cuda"].module
    assert module is not None  # cudnn_problem() was asked
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    found = module.cudnn_plans(
        *(op, fields, dtype, out_dtype, tf32),
        {name: v if isinstance(v, str) else int(v) for name, v in layer},
        *(workspace_limit, most),
    )
    return found.strip() if isinstance(found, str) else found


def _at_least_8(capability: str) -> bool:
    major, oldest = capability.split(".")[0], OLDEST.split(".")[0]
    return major.isdigit() and int(major) >= int(oldest)


def device_name(platform: str) -> str:
    """What tables of measurements call the device: "NVIDIA H200", a CPU's model."""
    return _gpu().name if platform == "cuda" else _cpu_model()


def is_hopper() -> bool:
    """Whether the Hopper kernels run on JAX's first GPU; without one they are planned
    for."""
    return _gpu().capability in (HOPPER, "unknown")


OLDEST, HOPPER = "8.0", "9.0"


class Gpu(NamedTuple):
    name: str
    capability: str
    multiprocessors: int


@functools.cache
def _gpu() -> Gpu:
    """JAX's first GPU."""
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        return Gpu("unknown", "unknown", 0)
    return Gpu(device.device_kind, device.compute_capability, device.core_count)


@functools.cache
def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = re.findall(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    except OSError:
        names = []
    return f"{names[0] if names else 'CPU'}, {os.cpu_count()} cores"


def gpu_visible() -> bool:
    """Whether this machine shows an NVIDIA GPU. Asks the file system only."""
    return any(glob.glob(sign) for sign in _GPU_SIGNS)


@dataclass(frozen=True)
class _Native:
    """A registered module, or the problem that there is none."""

    module: ModuleType | None = None
    problem: str | None = None
    built: bool = True


def _load(platform: str) -> _Native:
    name, jax_platform = _MODULES[platform]
    if importlib.util.find_spec(f"jax_convbatch.{name}") is None:
        return _Native(problem=built.why_not(platform), built=False)
    problem = built.ffi_mismatch()
    if problem:
        return _Native(problem=f"the {platform} module is not used: {problem}")
    try:
        if platform == "cuda":
            _preload_cublas()
        module = importlib.import_module(f"jax_convbatch.{name}")
        for target, handler in module.targets().items():
            jax.ffi.register_ffi_target(target, handler, platform=jax_platform)
    except Exception as error:
        return _Native(problem=f"the {platform} module does not load: {error}")
    return _Native(module)


def _preload_cublas() -> None:
    """Loads cuBLAS from the nvidia wheels, where there are any.

    A process holds one libcublasLt.so.13. JAX's plugin needs the one of its
    wheels, which may lie in another folder than this package.
    """
    library = _of_nvidia_wheels("cu13/lib/libcublasLt.so.13")
    if library:
        ctypes.CDLL(library)


def _of_nvidia_wheels(name: str) -> str:
    """The path of a file of the nvidia wheels; "" where there is none."""
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia and nvidia.submodule_search_locations) or ():
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return ""


def _cuda_allowed() -> bool:
    """Whether JAX_PLATFORMS leaves CUDA to JAX."""
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    return not platforms or bool({"cuda", "gpu"} & set(platforms.split(",")))


def _has_cuda_plugin() -> bool:
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    return any(importlib.util.find_spec(name) for name in plugins)


def _warning_of_threads() -> str | None:
    """Of what parallel.cc reads."""
    text = os.environ.get("JAX_CONVBATCH_THREADS", "1")
    if text.isdecimal() and int(text) > 0:
        return None
    return (
        f"JAX_CONVBATCH_THREADS is {text!r}, not a positive number: the CPU's engines "
        "use all processors"
    )


def _warning() -> str | None:
    """What the user should know about the native modules, in one text."""
    if built.is_pure():
        return f"jax_convbatch: {built.PURE}; {built.SERVED}."
    parts = []
    cpu, cuda = _natives["cpu"], _natives["cuda"]
    if cpu.problem:
        parts.append(f"CPU convolutions run on jax.lax: {cpu.problem}.")
    if cuda.problem and cuda.built:
        parts.append(f"CUDA convolutions run on jax.lax: {cuda.problem}.")
    elif cuda.problem and _has_cuda_plugin() and _cuda_allowed() and gpu_visible():
        parts.append(
            f"CUDA convolutions run on jax.lax: {cuda.problem}. To build it, run `pip "
            "install '.[cuda]' --config-settings=cmake.define.JAX_CONVBATCH_CUDA=ON` "
            "in the folder of the sources."
        )
    elif not cuda.problem and _cuda_allowed() and not gpu_visible():
        parts.append(
            "The CUDA module is installed, but no NVIDIA GPU is visible (there is no "
            "/dev/nvidia0), so convolutions run on the CPU."
        )
    return "jax_convbatch: " + " ".join(parts) if parts else None
