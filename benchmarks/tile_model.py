# SPDX-License-Identifier: Apache-2.0
"""The model of how long tiles take (ffi/cuda/select/tile_time.cc), and its fit.

The same formula as in C++, over arrays; tests/test_tile_time.py compares them. A fit
has two steps: least squares of logarithms of times, those of slow tiles weighing less;
then what is wanted, a small loss of the choice, with tiles that are about as fast
chosen in turns, so that it has a slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, minimize

KERNELS = ("kPingPong", "kCooperative", "kSingleWave", "kTransposed", "kHalo")
PER_KERNEL = ("products", "boxes", "stage", "begin", "end")
SHARED = (
    "power_products",
    "power_boxes",
    "launch",
    "whole_waves",
    "crowded",
    "long_boxes",
    "long_us",
    "long_power",
)
# Where a fit starts, and what holds constants that the data say little of.
KERNEL_START = (
    (0.28, 0.05, 0.02, 0.5, 0.5),
    (0.3, 0.05, 0.02, 1.0, 2.0),
    (0.25, 0.08, 0.02, 1.0, 1.0),
    (0.28, 0.05, 0.02, 0.5, 0.5),
    (0.32, 0.05, 0.01, 1.0, 1.0),
)
SHARED_START = (0.2, 0.1, 2.2, 0.5, 0.5, 0.5, 300.0, 1.0)
OF_KERNELS = len(KERNELS) * len(PER_KERNEL)
WHOLE_WAVES = OF_KERNELS + SHARED.index("whole_waves")

Tile = tuple[int, int, str, bool]  # m, n, which of KERNELS, dgrad


@dataclass(frozen=True)
class Samples:
    """Tiles of some operations, as columns of one length.

    Attributes:
      work: [10, samples]: kernel, products, boxes, tiles, stages (mean and longest),
        bytes, bytes of a filter that is transposed, microseconds that it ends later
        than tiles of the other kind, and the factor of the tile, by its place.
      times: logarithms of microseconds.
      operations: to which of the operations a sample belongs.
    """

    work: np.ndarray
    times: np.ndarray
    operations: np.ndarray

    @property
    def count(self) -> int:
        return int(self.operations[-1]) + 1

    def excess(self) -> np.ndarray:
        """By how much a tile is slower than the fastest, in logarithms."""
        best = np.full(self.count, np.inf)
        np.minimum.at(best, self.operations, self.times)
        return self.times - best[self.operations]


def start(tiles: int) -> np.ndarray:
    """What `times` takes, before any fit: constants, then factors of so many tiles."""
    constants = np.log(np.concatenate([np.ravel(KERNEL_START), SHARED_START]))
    constants[WHOLE_WAVES] = 0.0
    return np.concatenate([constants, np.zeros(tiles)])


def packed(constants: Sequence[float], factors: Sequence[float]) -> np.ndarray:
    """Constants, in the order of the C++ struct, as `times` takes them."""
    part = constants[WHOLE_WAVES]
    with np.errstate(divide="ignore"):
        found = np.log(np.asarray(constants, float))
    found[WHOLE_WAVES] = np.log(part / (1 - part))
    return np.concatenate([found, np.log(np.asarray(factors, float))])


def constants_of(theta: np.ndarray) -> tuple[list[float], list[float]]:
    """The other way: constants and factors."""
    count = OF_KERNELS + len(SHARED)
    constants = np.exp(theta[:count])
    constants[WHOLE_WAVES] = 1 / (1 + np.exp(-theta[WHOLE_WAVES]))
    return constants.tolist(), np.exp(theta[count:]).tolist()


def times(theta: np.ndarray, work: np.ndarray, multiprocessors: int) -> np.ndarray:
    """Logarithms of microseconds."""
    constants, factors = constants_of(theta)
    kernel = work[0].astype(int)
    products, boxes, tiles, stages, longest, moved, transposed, later = work[1:9]
    of_kernel = np.reshape(constants[:OF_KERNELS], (len(KERNELS), -1))[kernel].T
    per_product, per_box, per_stage, begin, end = of_kernel
    shared = dict(zip(SHARED, constants[OF_KERNELS:], strict=True))
    single = kernel == KERNELS.index("kSingleWave")
    busy = tiles / multiprocessors
    part = np.where(single, 1.0, shared["whole_waves"])
    waves = np.where(busy > 1, part * np.ceil(busy) + (1 - part) * busy, 1.0)
    square = (0.34 * busy * stages * products / shared["long_us"]) ** 2
    length = square / (1 + square)
    even = np.divide(stages, longest, np.ones_like(stages), where=longest > 0)
    crowd = np.where(single, 1 + shared["crowded"] * np.minimum(busy, 1) * even, 1)
    copies = per_box * boxes * (1 + shared["long_boxes"] * length) * crowd
    stage = ((per_product * products) ** 4 + copies**4) ** 0.25 + per_stage
    factor = np.asarray(factors)[work[9].astype(int)]
    of_wave = np.where(single, (stages + longest) / 2, stages)
    of_block = np.maximum(waves * of_wave, longest)
    computed = factor * (of_block * stage + waves * (begin + end * products))
    power_boxes = shared["power_boxes"] * (1 + shared["long_power"] * length)
    power = shared["power_products"] * products + power_boxes * boxes
    hidden = computed**6 + (busy * stages * power) ** 6 + (moved / 2.7e6) ** 6
    first = np.where(transposed > 0, transposed / 1e6 + 2, 0)
    return np.log(hidden ** (1 / 6) + shared["launch"] + later + first)


def chosen(theta: np.ndarray, samples: Samples, multiprocessors: int) -> np.ndarray:
    """Of each operation, the sample that the model takes."""
    model = times(theta, samples.work, multiprocessors)
    order = np.lexsort((model, samples.operations))
    first = np.unique(samples.operations[order], return_index=True)[1]
    return order[first]


def fit(
    samples: Samples, tiles: int, multiprocessors: int, factors: float = 1.0
) -> np.ndarray:
    """What `times` takes, fitted.

    Args:
      tiles: how many factors there are.
      factors: how much a factor costs that is not 1; more, of few samples.
    """
    begin = start(tiles)
    held = np.full(len(begin), 0.02)
    # Of a tile that was hardly timed, nothing is believed.
    known = np.bincount(samples.work[9].astype(int), minlength=tiles)
    held[len(begin) - tiles :] = factors * (1 + 10 / np.maximum(known, 1))
    excess = samples.excess()
    weight = 1 / (1 + 6 * np.expm1(excess))

    def errors(theta: np.ndarray) -> np.ndarray:
        model = times(theta, samples.work, multiprocessors)
        return (model - samples.times) * weight

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.concatenate([errors(theta), held * (theta - begin)])

    squares = least_squares(
        residuals, begin, loss="soft_l1", f_scale=0.08, max_nfev=150
    )

    def loss(theta: np.ndarray, spread: float) -> float:
        model = times(theta, samples.work, multiprocessors)
        least = np.full(samples.count, np.inf)
        np.minimum.at(least, samples.operations, model)
        taken = np.exp((least[samples.operations] - model) / spread)
        sums = np.bincount(samples.operations, taken)
        lost = (taken / sums[samples.operations]) @ excess / samples.count
        misfit = np.sqrt(1 + (errors(theta) / 0.08) ** 2).mean()
        return lost + 0.02 * misfit + 0.004 * ((held * (theta - begin)) ** 2).sum()

    theta = squares.x
    for spread in (0.08, 0.04):
        found = minimize(
            loss, theta, (spread,), method="L-BFGS-B", options={"maxiter": 150}
        )
        theta = found.x
    return theta
