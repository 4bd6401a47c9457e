#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xstage/sparse/mask.hpp"

namespace xstage::sparse {

/// Tokens of a sequence: `text` leading ones, then frames x height x width in raster order.
struct TokenLayout {
    std::int64_t text = 0, frames = 1, height = 1, width = 1;

    std::int64_t rows() const { return text + frames * height * width; }
    bool operator==(const TokenLayout&) const = default;
};

/// Per head and block the smallest top-p at which the block is kept: one map gives masks of any
/// density, each inside the denser ones. Stored is the remainder 1 - threshold in float16, the mass
/// of the block and of all that are not larger: most thresholds lie so near to 1 that float16 could
/// not tell them apart. Source: ScalingAttention, arXiv 2606.23019 (WEST).
class ThresholdMap {
  public:
    ThresholdMap() = default;
    /// `remainders` as float16 bits, [head][query block][key block]. Throws Error (kBadInput) for a
    /// wrong number of them, or a value outside of [0, 1].
    ThresholdMap(std::int64_t heads, const TokenLayout& layout,
                 std::vector<std::uint16_t> remainders);

    std::int64_t heads() const { return heads_; }
    std::int64_t blocks() const { return blocks_of(layout_.rows()); }
    const TokenLayout& layout() const { return layout_; }
    const std::vector<std::uint16_t>& remainders() const { return remainders_; }
    /// The threshold.
    float at(std::int64_t head, std::int64_t u, std::int64_t v) const;

    /// Blocks with a threshold of at most top_p[head]; rows and columns of text are kept whole.
    BlockMask mask(std::span<const float> top_p) const;
    BlockMask mask(float top_p) const;
    /// The mask of the smallest top-p, one for all heads, whose density is at least `density`.
    BlockMask mask_of_density(double density) const;
    /// Kept share of the pairs of one head, with text kept.
    double density(std::int64_t head, float top_p) const;
    /// Distinct thresholds of a head, ascending: between two of them no mask changes.
    std::vector<float> levels(std::int64_t head) const;

    /// For another resolution or number of frames: the smallest threshold among the blocks of this
    /// map that the tokens of a new block fall between. No kept block is lost where the pattern
    /// scales with the picture; the mask may become denser. Throws Error (kBadInput) if only one
    /// has text.
    ThresholdMap resampled(const TokenLayout& layout) const;

  private:
    std::int64_t heads_ = 0;
    TokenLayout layout_;
    std::vector<std::uint16_t> remainders_;
};

/// Collects calibration prompts. What is kept of each is a map, not the attention.
class WestCalibration {
  public:
    WestCalibration(std::int64_t heads, const TokenLayout& layout);

    /// Takes in one prompt (or step): mass[u * blocks + v] is the share of the attention of query
    /// block u that falls on key block v, so that each row's sum is 1. Throws Error (kBadInput) for
    /// a wrong size, NaN, a negative value or a row without mass.
    void add(std::int64_t head, std::span<const double> mass);
    ThresholdMap map() const;

  private:
    std::int64_t heads_;
    TokenLayout layout_;
    std::vector<double> largest_;  ///< remainder of any prompt so far
};

/// Remainders of one prompt's map: the share of the row's mass in this block and in those that do
/// not have more (equal masses get equal remainders, whatever their order).
std::vector<double> remainders_of(std::span<const double> mass, std::int64_t blocks);

/// One head's queries or keys: element (row, column) is data[row * stride + column].
struct HeadView {
    const float* data = nullptr;
    std::int64_t stride = 0;
};

/// Attention mass of every block, [query block][key block], from one head's Q and K of `rows` rows,
/// in two passes over the keys and without the rows x rows matrix.
/// scale 0: 1/sqrt(head_dim). Throws Error (kBadInput) for values that are not finite.
std::vector<double> block_mass(HeadView q, HeadView k, std::int64_t rows, int head_dim,
                               double scale = 0);
/// Attention mass of single query rows, [row][key block].
std::vector<double> row_mass(HeadView q, HeadView k, std::int64_t rows, int head_dim,
                             std::span<const std::int64_t> query_rows, double scale = 0);

/// Share of a map's mass that a head of a mask keeps, over all query blocks by their rows.
double recall(const BlockMask& mask, std::int64_t head, std::span<const double> mass);

float half_to_float(std::uint16_t half);
/// Away from zero: a remainder may only become larger, so that no block is lost.
std::uint16_t half_above(double value);

}  // namespace xstage::sparse
