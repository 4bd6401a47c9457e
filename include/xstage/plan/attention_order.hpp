#pragma once

// In which order the persistent attention kernel walks its tiles. The kernel runs this function,
// the simulator times it and the tests prove it: there is no second copy of an order.

#include <cstdint>

#if defined(__CUDACC__)
#define XSTAGE_HOST_DEVICE __host__ __device__
#else
#define XSTAGE_HOST_DEVICE
#endif

namespace xstage::plan {

inline constexpr int kMaxDestinations = 8;

enum class TileOrder : std::int32_t {
    kHeadMajor,     ///< tiles of a head in row order, head after head: K and V stay in L2
    kInterleaved,   ///< inside a head, neighbours go to different destinations
    kRotated,       ///< the same, each rank beginning with the rank after it and ending with itself
    kRemoteFirst,   ///< remote tiles of all heads, rotated; then all local tiles
    kLongestFirst,  ///< causal: last tile of each head of a group, last but one of each, ..
};

/// The tiles of one launch. Tiles [tile_begin[d], tile_begin[d+1]) of each head go to d.
struct AttentionGrid {
    std::int32_t tiles = 0;  ///< per head
    std::int32_t heads = 0;
    std::int32_t batches = 0;
    std::int32_t destinations = 1;
    std::int32_t rank = 0;  ///< which destination is local
    TileOrder order = TileOrder::kHeadMajor;
    bool descending = false;  ///< inside a destination the last tile first (causal: the longest)
    std::int32_t group = 1;   ///< kLongestFirst: heads (of all batches) whose K and V fit in L2
    /// Shortcuts for the interleaved orders: the least and the largest number of tiles of a
    /// destination (set_rounds). The order is the same without them, only found by a longer search.
    std::int32_t even_rounds = 0;
    std::int32_t rounds = 0;
    std::int32_t tile_begin[kMaxDestinations + 1] = {};

    XSTAGE_HOST_DEVICE constexpr std::int64_t size() const {
        return std::int64_t{tiles} * heads * batches;
    }
};

struct AttentionTile {
    std::int32_t tile = 0, head = 0, batch = 0;
};

namespace detail {

XSTAGE_HOST_DEVICE constexpr std::int32_t tiles_of(const AttentionGrid& grid, std::int32_t d) {
    return grid.tile_begin[d + 1] - grid.tile_begin[d];
}

XSTAGE_HOST_DEVICE constexpr std::int32_t nth_of(const AttentionGrid& grid, std::int32_t d,
                                                 std::int32_t n) {
    return grid.descending ? grid.tile_begin[d + 1] - 1 - n : grid.tile_begin[d] + n;
}

/// Destination number i counted on from the first one, cyclically; i is below twice their number.
XSTAGE_HOST_DEVICE constexpr std::int32_t cyclic(const AttentionGrid& grid, std::int32_t i) {
    return i < grid.destinations ? i : i - grid.destinations;
}

/// Tile number `index` when destinations first, first+1, .. (cyclic, `count` of them) are served in
/// turn and one that has run out is passed over. Chunks may differ in length, so a round beyond the
/// even ones is found by bisection: after r rounds, d has had min(tiles_of(d), r) tiles.
XSTAGE_HOST_DEVICE constexpr std::int32_t interleaved(const AttentionGrid& grid, std::int32_t index,
                                                      std::int32_t first, std::int32_t count) {
    std::int32_t low = grid.even_rounds;
    std::int32_t served = low * count;  // tiles in the rounds before `low`
    if (index < served) {
        const std::int32_t round = index / count;
        return nth_of(grid, cyclic(grid, first + index - round * count), round);
    }
    std::int32_t high = grid.rounds > 0 ? grid.rounds : grid.tiles;
    while (high - low > 1) {
        const std::int32_t middle = low + (high - low) / 2;
        std::int32_t sum = 0;
        for (std::int32_t i = 0; i < count; ++i) {
            const std::int32_t n = tiles_of(grid, cyclic(grid, first + i));
            sum += n < middle ? n : middle;
        }
        if (sum <= index) {
            low = middle;
            served = sum;
        } else {
            high = middle;
        }
    }
    std::int32_t left = index - served;
    for (std::int32_t i = 0; i < count; ++i) {
        const std::int32_t d = cyclic(grid, first + i);
        if (tiles_of(grid, d) > low && left-- == 0) return nth_of(grid, d, low);
    }
    return -1;  // index is not below the number of tiles of these destinations
}

}  // namespace detail

/// Fills in the shortcuts of a grid whose destinations are known.
XSTAGE_HOST_DEVICE constexpr void set_rounds(AttentionGrid& grid) {
    grid.even_rounds = grid.tiles;
    grid.rounds = 0;
    for (std::int32_t d = 0; d < grid.destinations; ++d) {
        const std::int32_t n = detail::tiles_of(grid, d);
        if (n < grid.even_rounds) grid.even_rounds = n;
        if (n > grid.rounds) grid.rounds = n;
    }
}

/// Index of a worker's task number `round` when `workers` of them take tasks 0, 1, .. in turn. With
/// `back_and_forth` every other round is dealt out backwards: where tasks shrink along the order,
/// each worker's long ones are then evened out by its short ones. May be past the last task.
XSTAGE_HOST_DEVICE constexpr std::int32_t task_index(std::int32_t worker, std::int32_t workers,
                                                     std::int32_t round, bool back_and_forth) {
    const bool backwards = back_and_forth && round % 2 == 1;
    return round * workers + (backwards ? workers - 1 - worker : worker);
}

/// The tile that is number `index` (0 .. grid.size()-1) in the grid's order. In 32 bits, since the
/// kernel's copying warp has few registers: grids are below 2^31 tiles.
XSTAGE_HOST_DEVICE constexpr AttentionTile tile_at(const AttentionGrid& grid, std::int32_t index) {
    const std::int32_t sequences = grid.heads * grid.batches;
    if (grid.order == TileOrder::kLongestFirst) {
        const std::int32_t before = index / (grid.group * grid.tiles) * grid.group;
        const std::int32_t left = sequences - before;  // the last group may be smaller
        const std::int32_t width = left < grid.group ? left : grid.group;
        const std::int32_t n = index - before * grid.tiles;
        const std::int32_t sequence = before + n % width;
        return {grid.tiles - 1 - n / width, sequence % grid.heads, sequence / grid.heads};
    }
    const std::int32_t local = detail::tiles_of(grid, grid.rank);
    const std::int32_t remote = grid.tiles - local;
    const bool remote_first = grid.order == TileOrder::kRemoteFirst;
    const bool in_local_run = remote_first && index >= remote * sequences;

    std::int32_t per_head = grid.tiles;
    if (remote_first) per_head = in_local_run ? local : remote;
    if (in_local_run) index -= remote * sequences;

    const std::int32_t sequence = index / per_head;
    const std::int32_t n = index - sequence * per_head;
    AttentionTile at{0, sequence % grid.heads, sequence / grid.heads};
    if (in_local_run) {
        at.tile = detail::nth_of(grid, grid.rank, n);
    } else if (remote_first) {
        at.tile = detail::interleaved(grid, n, grid.rank + 1, grid.destinations - 1);
    } else if (grid.order == TileOrder::kHeadMajor || grid.destinations == 1) {
        at.tile = grid.descending ? grid.tiles - 1 - n : n;
    } else {
        const std::int32_t first = grid.order == TileOrder::kRotated ? grid.rank + 1 : 0;
        at.tile = detail::interleaved(grid, n, first, grid.destinations);
    }
    return at;
}

}  // namespace xstage::plan
