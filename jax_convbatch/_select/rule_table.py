# SPDX-License-Identifier: Apache-2.0
"""The table of the rule of "auto" on CUDA: which engines are tried for a convolution,
in which order. The first line that applies decides."""

from __future__ import annotations

from jax_convbatch._select import folds
from jax_convbatch._select import rule_classes as classes
from jax_convbatch._select import rule_odd as odd
from jax_convbatch._select import rule_products as products
from jax_convbatch._select import rule_sequences as sequences
from jax_convbatch._select import rule_true_f32 as true_f32
from jax_convbatch._select import rule_volumes as three_axes
from jax_convbatch._select.rule_line import (
    ALL,
    BOTH,
    COLUMNS_LAST,
    DGRAD,
    FPROP,
    OURS_FIRST,
    WGRAD,
    Line,
    columns_first,
    cudnn_first,
    cudnn_last,
    ours_first,
)

CUDA = (
    Line(
        "any",
        ALL,
        classes.f64,
        ("im2col_gemm", "cudnn"),
        "cuBLAS has tensor cores for f64, cuDNN's convolutions do not use them",
    ),
    ours_first(
        BOTH,
        odd.scalars,
        "pixels by themselves: 66x66x66 1->1 3x3x3 in f32 at batch 8 26 us, folded 85, "
        "cuDNN 76; 162x162 2->2 at batch 8 4.0, 13, 13; 34x34x34 3->3 3x3x3 17, 44, "
        "75; 162x162 10->1 11, 25; 2048 steps of 5->5, three taps, at batch 32 3.8, "
        "8.5, 8.8; 256x256 1->34 at batch 8 36, 85, 74, 2->34 at batch 32 177, 369, "
        "276; dgrad of 162x162 34->1 at batch 8 17, 30",
    ),
    columns_first(
        FPROP,
        classes.to_few_outputs,
        "columns of outputs: 32x32 1280->3 3x3 in f32 at batch 2 20 us, ours 74, cuDNN "
        "256; 16x16 1280->16 at batch 8 26, 42, 40; 512x512 128->3 at batch 4 269, "
        "775, 676; bf16 32x32 512->8 at batch 16 12, 47, 38; 5x180x256 64->3 3x3x3 "
        "116, 177, 148; f32 3x128x160 48->3 30, 51, 69, 32->4 27, 32, 44",
    ),
    columns_first(
        FPROP,
        three_axes.one_output_of_volumes,
        "34x34x34 50->1 5x5x5 in f32 at batch 8 202 us, ours 361, cuDNN 1335; 66->1 "
        "3x3x3 at batch 1 16, 50, 82; 18x18x18 50->1 9, 22, 54",
    ),
    columns_first(
        DGRAD,
        odd.dx_of_one_input,
        "28x28 1->16 3x3 at batch 100 11.5 us, folded 13.3, cuDNN 35; 5x5 to 32 at "
        "batch 64 14.9, 23.5, 60; 64x64 1->16 at batch 8 6.7, 8.7, 20",
    ),
    cudnn_first(
        DGRAD,
        odd.dx_of_scalars,
        "of more products than our kernel of few channels has; of fewer 512x512 1->1 "
        "3x3 in f32 at batch 8 8.6 us, folded 15.5; 66x66 5x5 at batch 20 3.0, 7.0",
    ),
    cudnn_first(
        WGRAD,
        odd.wgrad_to_one,
        "34x34x34 1x1x1 5->1 at batch 8 7.8 us, ours 16.8; 30->1 17.7, 34; 128x128 "
        "34->1 11.5, 16.7",
    ),
    cudnn_first(
        FPROP,
        odd.volumes_of_few,
        "34x34x34 12->1 3x3x3 in f32 at batch 8 67 us, folded 98; 66x66x66 2->34 483, "
        "628",
    ),
    columns_first(
        WGRAD,
        odd.wgrad_of_short_products,
        "160 steps of 1->1, one tap, at batch 32 3.0 us, cuDNN 48, three taps 5.1, "
        "ours 18; 5->1 3.2, 13; 512 of 1->34 at batch 8 3.6, 9.8",
    ),
    ours_first(
        ALL,
        folds.folds,
        "pixels of a row as channels: 64x64 10->10 3x3 in f32 at batch 8 9 us, cuDNN "
        "15, wgrad 13, 117; 65536 steps of 16->16, 7 taps, at batch 4 19, 56; bf16 "
        "96x96x96 32 at batch 2 333, 419",
    ),
    columns_first(
        WGRAD,
        odd.wgrad_of_short_sequences,
        "160 steps of 12->12, three taps, at batch 32 8.2 us, ours 16, of 10->34 10, "
        "12; 512 of 12->12 at batch 8 13, 17",
    ),
    columns_first(
        BOTH,
        true_f32.of_few_channels,
        "at HIGHEST 64x64 3->64 7x7 at batch 8 33 us, cuDNN 51, dgrad 38, 412; 8->16 "
        "3x3 13, 17, dgrad 13, 25",
    ),
    cudnn_last(
        WGRAD,
        true_f32.of_few_channels,
        "at HIGHEST 128x128 4->4 3x3 at batch 8 43 us, cuDNN 2843; 28x28 1->32 5x5 at "
        "batch 32 by columns 24, 539",
    ),
    columns_first(
        FPROP,
        classes.gradients_of_examples,
        "20x20 taps of a filter over 84x84, 64 groups of 1->32, in bf16 64 us, cuDNN "
        "1666; f32 28x28 over 28x28 of 4 groups 12, ours 48, cuDNN 88",
    ),
    columns_first(
        FPROP,
        classes.f32_patches,
        "64x64 2x2s2 4->1152 at batch 256 438 us, ours 506, cuDNN 730",
    ),
    columns_first(
        FPROP,
        classes.wide_stems,
        "512x512 7x7s4 3->1152 in bf16 at batch 8 530 us, ours 1109",
    ),
    columns_first(
        BOTH,
        odd.odd_scalars,
        "162x162 1x1 3->34 at batch 8 25 us, ours 58; 128x128 10->10 at batch 20 25, "
        "56, cuDNN 40",
    ),
    columns_first(
        BOTH,
        classes.mapped_stems,
        "84x84 8x8s4 of 4 groups of 4->32 at batch 16 14 us, ours 42; bf16 32x32 of 64 "
        "groups of 3->16 at batch 128 fprop 1379, cuDNN 1746, dgrad 1657, 4248",
    ),
    columns_first(
        BOTH,
        classes.mapped_scalars,
        "dgrad of 28x28 of 64 groups of 1->16 in f32 at batch 128 663 us, ours 833, of "
        "8 73, 124, of 4 at batch 16 8.4, 30; fprop of these 4 10, 16",
    ),
    cudnn_first(
        WGRAD,
        classes.wgrad_of_mapped_stems,
        "84x84 8x8s4 of 16 groups of 4->32 at batch 128 710 us, columns 1565, ours "
        "1271; of 64 at batch 16 479, 473, 825",
    ),
    columns_first(
        BOTH,
        sequences.thin_products,
        "2048 steps of 30->64, one tap, at batch 20 9.5 us, ours 12, dgrad 10.3, 12",
    ),
    cudnn_first(
        WGRAD,
        classes.wgrad_of_small_patches,
        "28x28 2x2s2 4->96 in bf16 at batch 256 54 us, cuDNN 25",
    ),
    columns_first(
        ("fprop", "wgrad"),
        classes.thin_patches,
        "28x28 2x2s2 4->1024 at batch 256 48 us, ours 89, wgrad 60, 420; 224x224 "
        "16x16s16 1->1152 at batch 256 106, 124, wgrad 344, 914; wgrad of 64x64 4x4s4 "
        "3->384 at batch 256 36, 59, f32 3->1024 at batch 64 34, 52",
    ),
    columns_first(
        ("fprop", "wgrad"),
        three_axes.deep_patches,
        "f32 16x512x512 2x7x7s2x4x4 3->128 248 us, ours 325, cuDNN 280, wgrad of "
        "2x512x512 to 192 at batch 4 357, 637, 509; whole ones in bf16 16x224x224 "
        "2x8x8 3->768 20, 29, wgrad of 8x216x216 at batch 4 33, 51",
    ),
    cudnn_first(
        WGRAD,
        three_axes.overlapping_patches,
        "f32 8x224x224 2x7x7s2x4x4 3->128 59 us, ours 86",
    ),
    columns_first(
        DGRAD,
        three_axes.few_strided_outputs,
        "f32 dx of 8x8x8 320->320 3x3x3 s2 at batch 2 16.5 us, ours 17.7, cuDNN 31",
    ),
    cudnn_first(
        ("fprop", "wgrad"),
        classes.strided_images,
        "1024x1024 32->32 at batch 8 203 us, ours 294, wgrad 350, 551; wgrad of "
        "512x512 64->64 at batch 4 62, 81",
    ),
    columns_first(
        BOTH,
        odd.odd_products,
        "256x256 66->64 at batch 32 417 us, cuDNN 590, dgrad 591, 710; 34->64 at batch "
        "1 12, 23, ours 17",
    ),
    cudnn_first(
        WGRAD,
        products.wgrad_of_f32_products,
        "512x512 128->128 at batch 8 716 us, ours 847; 28x28 64->192 at batch 8 8, 10",
    ),
    cudnn_first(
        ALL,
        three_axes.wide_volumes,
        "x read for each tap: 64x64x64 64 at batch 2 295 us, cuDNN 275; 2x360x480 "
        "64->128 fprop 313, 257, dgrad 454, 409, wgrad 350, 294",
    ),
    cudnn_first(
        BOTH,
        three_axes.copied_volumes,
        "96x96x96 32 at batch 2 440 us, cuDNN 413; dx of 64x64x64 64->32 183, 135 "
        "(H200); of a transposed 48x48x48 192->96 169, 163, in f32 32x32x32 256->128 "
        "at batch 2 122, 110; 17x180x32 32->16 3x1x1 10, 4; 9x64x64 48->3 at batch 2 "
        "81, 52; 17x128x256 48->24 s1x2x2 207, 164",
    ),
    cudnn_first(
        BOTH,
        three_axes.few_outputs_along_depth,
        "17x90x160 256->3 3x1x1 s2x1x1 72 us, cuDNN 60, dgrad 99, 71",
    ),
    cudnn_first(
        BOTH,
        three_axes.strided_to_few,
        "9x128x128 256->3 s2 in f32 228 us, cuDNN 115, dgrad 152, 90; dx of 2x360x320 "
        "1024->3 s2 942, 434; of 2x128x64 512->256 3x1x1 s2x1x1 78, 41; bf16 9x128x128 "
        "256->3 s1x2x2 at batch 2 489, 176, 360x320 1024->3 3x3 s2 247, 175",
    ),
    cudnn_first(
        WGRAD,
        three_axes.wgrad_of_volumes,
        "16x16x16 256 at batch 2 45 us, cuDNN 40; 3x32x160 512 3x1x1 s2x1x1 at batch 2 "
        "69, 55; 48x48x48 96->192 s2 104, 71 (PyTorch's); transposed 12x48x48 192->96 "
        "84, 68, 64x64x64 128->64 at batch 2 195, 172, 16x16x16 320->256 35, 29",
    ),
    cudnn_first(
        BOTH,
        classes.many_taps,
        "x read for each tap: 32x32 96->192 5x5 in f32 at batch 1024 5005 us, cuDNN "
        "3307",
    ),
    cudnn_first(
        ("fprop", "wgrad"),
        sequences.half_filled,
        "120000 steps of 32, 11 taps, in bf16 at batch 4 75 us, cuDNN 63; wgrad of "
        "65536 at batch 16 284, 180",
    ),
    cudnn_first(
        BOTH,
        classes.thin_images,
        "21x21 of 32 channels at batch 672 129 us, cuDNN 59; dgrad at batch 1024 158, "
        "92 (PyTorch's)",
    ),
    cudnn_first(
        FPROP,
        classes.uneven_depthwise,
        "112x112 of 40 channels in bf16 at batch 64 79 us, cuDNN 54, of 72 153, 104; "
        "dgrad of 40 81, 106",
    ),
    cudnn_first(
        FPROP,
        classes.uneven_images,
        "x read for each tap: 75x75 48->96 at batch 64 258 us, cuDNN 204; 128x128 5x5 "
        "50->50 52, 43",
    ),
    cudnn_first(
        WGRAD,
        products.wgrad_of_some_products,
        "8192 of 768->768, one tap, in bf16 21 us, ours 28; 16384 of 640 25, 32",
    ),
    cudnn_first(
        WGRAD,
        classes.wgrad_of_few_pixels,
        "8x8 of 1280 channels, 3x3, in bf16 55 us, cuDNN 18, at batch 8 38, 29, 16x16 "
        "at batch 4 50, 44; f32 8x8 at batch 8 120, 89, one tap at batch 4 11.9, 10.3; "
        "4x8x8 320 s2 at batch 2 13.3, 11.9; 128 steps of a transposed 1024->512 26, "
        "22, bf16 64 at batch 4 42, 27",
    ),
    cudnn_first(
        BOTH,
        classes.huge_images,
        "x read for each tap: 512x512 128->64 at batch 8 746 us, cuDNN 611 (PyTorch's)",
    ),
    cudnn_first(
        BOTH,
        products.small_products,
        "14x14 192->32 at batch 16 3.1 us, ours 4.9; 28x28 at batch 128 13.1, 16.5; "
        "7x7 960->16 at batch 64 4.8, 5.9, 28x28 240->16 8.9, 10.3",
    ),
    cudnn_first(
        FPROP,
        products.narrow_products,
        "56x56 192->48 in bf16 at batch 64 28 us, cuDNN 25; 28x28 240->48 12, 9",
    ),
    cudnn_first(
        BOTH,
        products.products_between_sectors,
        "28x28 240->136 in bf16 at batch 64 17 us, cuDNN 12, 240->24 13, 10; 14x14 "
        "672->40 9.4, 8.1; dgrad of 28x28 240->40 11.4, 10.3",
    ),
    cudnn_first(
        WGRAD,
        products.uneven_wgrad,
        "28x28 136->192 in bf16 at batch 64 24 us, cuDNN 17; 7x7 1152->24 at batch 128 "
        "10.5, 8.3; f32 14x14 480->40 10.7, 7.6, 56x56 192->136 130, 113 (a peer's)",
    ),
    cudnn_first(
        DGRAD,
        classes.odd_width,
        "x read for each tap: 112x112 48->192 at batch 128 873 us, cuDNN 739",
    ),
    cudnn_last(
        ("fprop", "wgrad"),
        classes.odd_patches,
        "336x336 14x14s14 3->1024 at batch 256 by columns 1403 us, cuDNN 6352, wgrad "
        "1415, 8117; wgrad at batch 1 24, 58",
    ),
    cudnn_last(
        ALL,
        classes.far_strides,
        "128x128 11x11s10 64->64 at batch 16 by columns 36 us, cuDNN 33 (PyTorch's), "
        "dgrad 81, 112, wgrad 46, 64; dgrad of 224x224 16x16s16 3->768 at batch 256, "
        "which has a kernel, 773, 7510; f32 16x224x224 2x16x16 3->768 at batch 2, by "
        "ours, 45, columns 90, cuDNN 333, wgrad 60, 108, 164",
    ),
    Line(
        "hopper",
        ALL,
        classes.always,
        OURS_FIRST,
        "our kernels are measured ahead of cuDNN's (docs/benchmarks.md)",
    ),
    Line(
        "any",
        ALL,
        classes.groups,
        OURS_FIRST,
        "cuDNN's kernels for depthwise layers and small groups are far from the roof "
        "on every GPU; ours read each array once",
    ),
    Line(
        "any",
        ALL,
        classes.always,
        COLUMNS_LAST,
        "cuDNN's kernels were tuned for this GPU, and ours were not measured on it",
    ),
)
