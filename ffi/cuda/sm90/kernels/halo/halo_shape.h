// SPDX-License-Identifier: Apache-2.0
// How the tiles of halo_kernel.cuh lie, and what they read of x.
#pragma once

#include "conv_geometry.h"

namespace jax_convbatch::hopper {

// A tile is two blocks of 64 pixels: squares of 8 x 8, one below the other; any
// two squares, where images have an odd number of them above each other and
// their halos are small; or 64 pixels each of an image of one row, side by
// side.
enum class HaloTile { kBelow, kSquares, kRow };

inline constexpr int kHaloTilePixels = 128;

// An image is cut into units: tiles, or squares.
struct HaloShape {
  HaloTile tile;
  int unit_cols, unit_rows;  // in pixels
  int units_w, units_h;      // of an image or, of three axes, a slice of it
  int halo_cols, halo_rows;  // of a unit: the pixels of x under it
  int tiles;                 // of all images

  bool squares() const { return tile == HaloTile::kSquares; }
  int halos() const { return squares() ? 2 : 1; }  // of a tile
  int halo_pixels() const { return halos() * halo_rows * halo_cols; }
};

// Of fprop at stride 1.
inline HaloShape HaloShapeOf(const ConvGeometry& g) {
  HaloShape s{};
  const int64_t odd = (g.P - 1) % 16;
  const int64_t cols = (g.S - 1) * g.filter_dilation.w;
  const int64_t rows = (g.R - 1) * g.filter_dilation.h;
  const bool small = 2 * (8 + cols) * (8 + rows) <= 200;
  s.tile = g.P == 1           ? HaloTile::kRow
           : odd < 8 && small ? HaloTile::kSquares
                              : HaloTile::kBelow;
  s.unit_cols = s.tile == HaloTile::kRow ? kHaloTilePixels : 8;
  s.unit_rows = s.tile == HaloTile::kRow ? 1 : s.squares() ? 8 : 16;
  s.units_w = static_cast<int>((g.Q + s.unit_cols - 1) / s.unit_cols);
  s.units_h = static_cast<int>((g.P + s.unit_rows - 1) / s.unit_rows);
  s.halo_cols = s.unit_cols + static_cast<int>(cols);
  s.halo_rows = s.unit_rows + static_cast<int>(rows);
  const int64_t units = g.N * g.O * s.units_w * s.units_h;
  s.tiles = static_cast<int>((units + s.halos() - 1) / s.halos());
  return s;
}

// Whether the kernel's arithmetic has room for a geometry: one group, stride 1,
// channels of whole 16 bytes, halos of at most so many pixels.
bool IsHalo(const ConvGeometry& fprop, int element_bytes, int most_pixels);

}  // namespace jax_convbatch::hopper
