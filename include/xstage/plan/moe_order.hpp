#pragma once

// In which order a MegaMoE kernel walks its Linear-1 and Linear-2 tiles. The kernel runs this
// function, the simulator times it and the tests prove it: there is no second copy of an order.

#include <cstdint>

#if defined(__CUDACC__)
#define XSTAGE_HOST_DEVICE __host__ __device__
#else
#define XSTAGE_HOST_DEVICE
#endif

namespace xstage::plan {

enum class MoeOrderKind : std::int32_t {
    kWave,       ///< Linear-1 of `wave` experts, then their Linear-2, wave after wave
    kAlternate,  ///< after a warm-up one Linear-2 tile, one Linear-1 tile, and so on
    kLead,       ///< Linear-2 of a row of tiles follows Linear-1 of the row `lead` further on
    kRatio,      ///< as kAlternate, with as many Linear-2 to Linear-1 tiles as the grid has
};

struct MoeOrder {
    MoeOrderKind kind = MoeOrderKind::kWave;
    std::int32_t wave = 0;  ///< experts per wave; 0: all of them
    std::int32_t lead = 0;  ///< rows of tiles, at least 1 (kLead)
    /// Linear-1 tiles before the first Linear-2 tile, beyond the least number (kAlternate, kRatio).
    /// With about two per CTA no CTA waits for a tile that another one is still computing.
    std::int32_t slack = 0;
    /// Rows of one expert whose tiles are walked column by column, so that they read the same
    /// weights at the same time. 1: row by row. With kLead not more than the lead.
    std::int32_t band = 1;
    /// CTAs that do the tiles of as many neighbouring blocks of an expert at a time, and load the
    /// weights once for all: 1 or 2. The rows that the order goes by are then pairs of blocks.
    std::int32_t ctas = 1;
};

/// The tiles of one rank. A row is one block of tokens of one expert (or MoeOrder::ctas): it has
/// `n1` Linear-1 tiles, and `n2` Linear-2 tiles that need all of them. Rows [row_begin[e],
/// row_begin[e+1]) are expert e's.
struct MoeGrid {
    std::int32_t experts = 0;
    std::int32_t n1 = 1;
    std::int32_t n2 = 1;
    const std::int32_t* row_begin = nullptr;  ///< experts + 1 of them

    XSTAGE_HOST_DEVICE constexpr std::int64_t rows() const { return row_begin[experts]; }
    XSTAGE_HOST_DEVICE constexpr std::int64_t size() const { return rows() * (n1 + n2); }
};

struct MoeTile {
    bool second = false;  ///< Linear-2
    std::int32_t row = 0;
    std::int32_t n = 0;
};

namespace detail {

XSTAGE_HOST_DEVICE constexpr MoeTile moe_tile(bool second, std::int64_t index, std::int32_t width) {
    return {second, static_cast<std::int32_t>(index / width),
            static_cast<std::int32_t>(index % width)};
}

/// Number of the first task of the wave that holds task `index` is found by bisection over waves:
/// the waves before wave w hold all tiles of the rows before its first expert.
XSTAGE_HOST_DEVICE constexpr MoeTile wave_tile(const MoeGrid& grid, std::int32_t wave,
                                               std::int64_t index) {
    const std::int32_t size = wave > 0 && wave < grid.experts ? wave : grid.experts;
    const std::int32_t width = grid.n1 + grid.n2;
    const std::int64_t row = index / width;
    std::int32_t low = 0;
    std::int32_t high = (grid.experts + size - 1) / size;
    while (high - low > 1) {
        const std::int32_t middle = low + (high - low) / 2;
        if (grid.row_begin[middle * size] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const std::int32_t end = (low + 1) * size < grid.experts ? (low + 1) * size : grid.experts;
    const std::int64_t first = grid.row_begin[low * size];
    const std::int64_t ones = (grid.row_begin[end] - first) * grid.n1;
    const std::int64_t within = index - first * width;
    if (within < ones) return moe_tile(false, first * grid.n1 + within, grid.n1);
    return moe_tile(true, first * grid.n2 + within - ones, grid.n2);
}

/// Linear-1 of rows 0..lead-1; then Linear-1 of row r+lead and Linear-2 of row r in turn; then the
/// Linear-2 that is left. Within a turn the two kinds are mixed tile by tile, in proportion.
XSTAGE_HOST_DEVICE constexpr MoeTile lead_tile(const MoeGrid& grid, std::int32_t lead,
                                               std::int64_t index) {
    const std::int64_t rows = grid.rows();
    const std::int64_t head = lead < 1 ? 1 : (lead < rows ? lead : rows);
    if (index < head * grid.n1) return moe_tile(false, index, grid.n1);
    index -= head * grid.n1;
    const std::int32_t width = grid.n1 + grid.n2;
    const std::int64_t turn = index / width;
    if (turn >= rows - head) {
        return moe_tile(true, (rows - head) * grid.n2 + index - (rows - head) * width, grid.n2);
    }
    // Before position i of a turn stand floor(i * n2 / width) Linear-2 tiles.
    const std::int64_t i = index - turn * width;
    const std::int64_t twos = i * grid.n2 / width;
    const bool second = (i + 1) * grid.n2 / width > twos;
    if (second) return moe_tile(true, turn * grid.n2 + twos, grid.n2);
    return moe_tile(false, (head + turn) * grid.n1 + i - twos, grid.n1);
}

/// `warmup` Linear-1 tiles, then turns of `twos` Linear-2 and `ones` Linear-1 tiles, Linear-2
/// first; then what is left of Linear-2.
XSTAGE_HOST_DEVICE constexpr MoeTile turns_tile(const MoeGrid& grid, std::int64_t warmup,
                                                std::int32_t ones, std::int32_t twos,
                                                std::int64_t index) {
    const std::int64_t all_ones = grid.rows() * grid.n1;
    if (index < warmup) return moe_tile(false, index, grid.n1);
    index -= warmup;
    const std::int64_t left = all_ones - warmup;  // Linear-1 tiles after the warm-up
    const std::int32_t width = ones + twos;
    const std::int64_t turn = index / width;
    const std::int64_t within = index - turn * width;
    const std::int64_t ones_done = turn * ones + (within > twos ? within - twos : 0);
    if (within >= twos && ones_done < left) {
        return moe_tile(false, warmup + ones_done, grid.n1);
    }
    // After the last Linear-1 tile only Linear-2 is left, and turns no longer matter.
    return moe_tile(true, index - (ones_done < left ? ones_done : left), grid.n2);
}

XSTAGE_HOST_DEVICE constexpr std::int32_t band_of(const MoeOrder& order) {
    if (order.kind == MoeOrderKind::kLead && order.band > order.lead)
        return order.lead < 1 ? 1 : order.lead;
    return order.band < 1 ? 1 : order.band;
}

/// The tile that stands where `tile` would, had its band been walked column by column.
XSTAGE_HOST_DEVICE constexpr MoeTile banded(const MoeGrid& grid, std::int32_t band, MoeTile tile) {
    std::int32_t low = 0;  // the last expert whose first row is not after the tile's
    std::int32_t high = grid.experts;
    while (high - low > 1) {
        const std::int32_t middle = low + (high - low) / 2;
        if (grid.row_begin[middle] <= tile.row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const std::int32_t begin = grid.row_begin[low];
    const std::int32_t first = begin + (tile.row - begin) / band * band;
    const std::int32_t left = grid.row_begin[low + 1] - first;
    const std::int32_t rows = left < band ? left : band;
    const std::int32_t at = (tile.row - first) * (tile.second ? grid.n2 : grid.n1) + tile.n;
    return {tile.second, first + at % rows, at / rows};
}

XSTAGE_HOST_DEVICE constexpr std::int64_t gcd(std::int64_t a, std::int64_t b) {
    while (b != 0) {
        const std::int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

}  // namespace detail

/// The fewest Linear-1 tiles that must come before the first of turns of `twos` Linear-2 and `ones`
/// Linear-1 tiles, so that every Linear-2 tile comes after all Linear-1 tiles of its row. With this
/// a grid that claims tasks in order cannot deadlock: a tile waits for earlier claims only.
XSTAGE_HOST_DEVICE constexpr std::int64_t least_warmup(const MoeGrid& grid, std::int32_t ones,
                                                       std::int32_t twos) {
    const std::int64_t rows = grid.rows();
    std::int64_t warmup = 0;
    // Row r's first Linear-2 tile is number r * n2 of its kind, so floor(r * n2 / twos) turns of
    // Linear-1 tiles stand before it. What is missing grows or shrinks with r by steps of at most
    // one turn, so the largest over the rows is looked for at both ends and one period beside them.
    const std::int64_t period = twos / detail::gcd(grid.n2, twos);
    const auto missing = [&](std::int64_t r) {
        return (r + 1) * grid.n1 - r * grid.n2 / twos * ones;
    };
    for (std::int64_t r = 0; r < rows && r < period; ++r) {
        const std::int64_t last = rows - 1 - r;
        warmup = missing(r) > warmup ? missing(r) : warmup;
        warmup = missing(last) > warmup ? missing(last) : warmup;
    }
    const std::int64_t all = rows * grid.n1;
    return warmup < all ? warmup : all;
}

/// Linear-1 and Linear-2 tiles of one turn, and the warm-up before the first, of an order that goes
/// by turns.
struct MoeTurns {
    std::int32_t ones = 1, twos = 1;
    std::int64_t warmup = 0;
};

XSTAGE_HOST_DEVICE constexpr MoeTurns turns_of(const MoeGrid& grid, const MoeOrder& order) {
    MoeTurns turns;
    if (order.kind == MoeOrderKind::kRatio) {
        const std::int64_t common = detail::gcd(grid.n1, grid.n2);
        turns.ones = static_cast<std::int32_t>(grid.n1 / common);
        turns.twos = static_cast<std::int32_t>(grid.n2 / common);
    }
    // A row's Linear-1 is complete when that of its whole band is.
    const std::int64_t least = least_warmup(grid, turns.ones, turns.twos) +
                               std::int64_t{detail::band_of(order) - 1} * grid.n1;
    const std::int64_t all = grid.rows() * grid.n1;
    turns.warmup = least + order.slack < all ? least + order.slack : all;
    return turns;
}

/// The tile that is number `index` (0 .. grid.size()-1) in the order. `turns` is turns_of(grid,
/// order), which a kernel works out once.
XSTAGE_HOST_DEVICE constexpr MoeTile moe_tile_at(const MoeGrid& grid, const MoeOrder& order,
                                                 const MoeTurns& turns, std::int64_t index) {
    MoeTile tile;
    if (order.kind == MoeOrderKind::kWave) {
        tile = detail::wave_tile(grid, order.wave, index);
    } else if (order.kind == MoeOrderKind::kLead) {
        tile = detail::lead_tile(grid, order.lead, index);
    } else {
        tile = detail::turns_tile(grid, turns.warmup, turns.ones, turns.twos, index);
    }
    const std::int32_t band = detail::band_of(order);
    return band > 1 ? detail::banded(grid, band, tile) : tile;
}

/// Fewest rows that a ring between the pulling of rows and Linear-2 must hold under kLead, so that
/// the row whose place a row takes is through Linear-2 before: Linear-1 of a band may begin with
/// its last row, and Linear-2 of one end with its first. The other orders may need all rows.
XSTAGE_HOST_DEVICE constexpr std::int32_t least_ring(const MoeOrder& order) {
    return (order.lead < 1 ? 1 : order.lead) + 2 * detail::band_of(order) - 1;
}

}  // namespace xstage::plan
