# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of few channels, of any number, to few: large images and volumes.

No kernel is for them alone. Some have folded pixels, others copies with zeros beside
the channels; "auto" also takes columns and cuDNN.
"""

import numpy as np
import pytest
from fake_gpus import on
from problems import exact, normal, run
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
    engine_of,
)
from test_depth import volume
from test_implicit_gemm import SAME, problem

TWO, THREE = ((2, 2), (2, 2)), ((3, 3), (3, 3))
# Rows of odd numbers of pixels and of multiples of 2, 4 and 8; steps, dilation,
# negative padding, and padding on one side.
IMAGES = {
    "3->5": problem(2, (101, 103), 3, 5, (3, 3), padding=SAME),
    "5->7": problem(2, (120, 97), 5, 7, (5, 5), padding=TWO),
    "34->1": problem(3, (110, 113), 34, 1, (3, 3)),
    "2->18, strided": problem(2, (210, 311), 2, 18, (3, 3), (2, 3), THREE, (2, 1)),
    "18->2": problem(2, (103, 109), 18, 2, (3, 3), padding=SAME),
    "10->10, dilated": problem(2, (101, 117), 10, 10, (3, 3), (1, 1), THREE, (2, 3)),
    "1->34, a sequence": problem(
        3, (1, 10007), 1, 34, (1, 7), padding=((0, 0), (6, 0))
    ),
    "6->6, long rows": problem(1, (8, 1500), 6, 6, (3, 5), padding=((1, 1), (2, 2))),
    "1->1": problem(4, (120, 121), 1, 1, (5, 5), padding=TWO),
    "3->2, negative": problem(2, (112, 114), 3, 2, (3, 3), padding=((-2, 1), (1, -2))),
    "66->1": problem(2, (108, 109), 66, 1, (5, 5)),
    "35->2, rows apart": problem(
        1, (120, 121), 35, 2, (3, 3), padding=THREE, dilation=(3, 1)
    ),
    "4->18": problem(2, (102, 100), 4, 18, (3, 3), padding=SAME),
    "3->4, seven": problem(2, (110, 104), 3, 4, (7, 7), padding=THREE),
}
VOLUMES = {
    "30->1": volume(2, (32, 33, 34), 30, 1, (3, 1, 5), pad=(1, 0, 2)),
    "2->2": volume(3, (31, 32, 33), 2, 2, (3, 3, 3)),
    "5->6, strided": volume(2, (64, 33, 62), 5, 6, (2, 3, 2), (2, 1, 2), (1, 1, 0)),
    "34->1, deep": volume(1, (33, 34, 35), 34, 1, (3, 3, 3)),
    "3->13": volume(1, (2, 130, 131), 3, 13, (2, 3, 1), pad=(1, 1, 0)),
}
CASES = IMAGES | VOLUMES


@pytest.mark.parametrize("name", CASES)
def test_all_three_operations_have_kernels(native, monkeypatch, name):
    on(monkeypatch, "9.0")
    assert engine_of(CASES[name], "float32") == "implicit_gemm"


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, algorithm):
    assert_exact(CASES[name], "float32", algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "auto"])
@pytest.mark.parametrize("name", ["5->7", "18->2", "4->18", "30->1", "34->1, deep"])
def test_real_numbers_are_right_to_a_tf32(hopper, name, algorithm):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "float32")
    got = run(case, x, w, dy, algorithm=algorithm)
    for a, right in zip(got, exact(case, x, w, dy), strict=True):
        error = np.linalg.norm(np.float64(a) - right) / np.linalg.norm(right)
        assert error < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5->7", "34->1", "66->1", "6->6, long rows", "2->2"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    # Of copies with zeros wgrad takes no large batches.
    assert_batch_invariant(CASES[name], "float32", batches=(1, 3, 8))
    assert_a_hundred_runs_agree(CASES[name], "float32", algorithm="auto")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["66->1", "6->6, long rows"])
def test_nor_do_they_by_auto(hopper, name):
    """By columns, copies with zeros and folded pixels."""
    assert_batch_invariant(CASES[name], "float32", "auto")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3->5", "66->1", "10->10, dilated"])
def test_what_is_not_finite_stays_where_it_belongs(hopper, name):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "float32")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 0] = np.inf
    # Of kernels whose taps share pixels: in any of the taps.
    assert_not_finite_as_by_columns(case, x, w, dy, in_some_tap=True)
