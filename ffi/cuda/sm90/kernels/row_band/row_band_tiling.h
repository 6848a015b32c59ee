// SPDX-License-Identifier: Apache-2.0
// Tiles of the row-band kernel, as the host chooses them.
#pragma once

namespace jax_convbatch::hopper {

// Pixels of a product: of whole rows, among them those that are no output's, or
// of a strip of eight columns.
inline constexpr int kRowBandPixels = 232;
inline constexpr int kColumnStripPixels = 224, kColumnStripCols = 8;
// Of strips of no more rows than these have, of one group.
inline constexpr int kShortColumnStripPixels = 160;
// Of narrow groups, whose products have 64 pixels each: at most, of whole rows.
inline constexpr int kGroupRowBandPixels = 248;
inline constexpr int kRowBandChannels = 64;
inline constexpr int kRowBandPiecePixels =
    64;  // of a product of a tile's piece
inline constexpr int kMaxRowBandTaps = 25;
inline constexpr int kMaxGroupRowBandTaps = 9;  // of several groups
// Residue classes of the strides of narrow groups: 1, or 2 along both axes.
inline constexpr int kMaxRowBandClasses = 4;
inline constexpr int kMaxRowBandStages = 4;

// A tile is `rows` rows of `cols` outputs of one image. All that they read is
// one box of rows of `width` pixels, of each residue class where there are. Of
// whole rows, the product takes the pixels as they follow each other there,
// with those between the ends of two rows. Of a strip, it takes eight pixels of
// each row.
struct RowBandTiling {
  int rows, cols, width;
  int pixels;  // of a product
  int box_rows;
  int piece_rows;      // of the pieces that tiles may be cut into, or 0
  int groups, strips;  // tiles down and across an image
  int step;            // from an output to the next, of both axes
  int boxes;           // of the classes, or of 64 channels each
  int class_bytes;     // a box
  int stage_bytes;     // the boxes and what a product reads behind them
  int stages;
};

}  // namespace jax_convbatch::hopper
