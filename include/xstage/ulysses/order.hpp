#pragma once

// Where rows go and in which order they are sent, as pure functions that the kernels, the host
// backend, the planner and the tests all call.

#include <cstdint>

#include "xstage/fabric/signals.hpp"

namespace xstage::ulysses {

/// Row (rank, row) on one axis that holds the rows of all ranks.
struct AxisMap {
    /// First row of each rank's chunk; the rank's own rows start at 0 when all are 0.
    std::int64_t start[fabric::kMaxRanks] = {};
    /// Page by page: units of `unit_rows` rows in turn, one from each rank that has some left.
    /// 0: whole chunks.
    std::int64_t unit_rows = 0;
    std::int64_t units[fabric::kMaxRanks] = {};
    int world = 0;
};

XSTAGE_HD constexpr std::int64_t axis_row(const AxisMap& map, int rank, std::int64_t row) {
    if (map.unit_rows == 0) return map.start[rank] + row;
    // Rows mostly fit 32 bits, and a division of 64 costs a kernel more than the rest of this.
    const bool narrow = row >> 31 == 0 && map.unit_rows >> 31 == 0;
    const std::int64_t unit =
        narrow ? static_cast<std::int64_t>(static_cast<std::uint32_t>(row) /
                                           static_cast<std::uint32_t>(map.unit_rows))
               : row / map.unit_rows;
    std::int64_t before = 0;
    for (int r = 0; r < map.world; ++r) {
        const std::int64_t turns = r < rank ? unit + 1 : unit;
        before += map.units[r] < turns ? map.units[r] : turns;
    }
    return before * map.unit_rows + (row - unit * map.unit_rows);
}

/// How a sender walks over (row, destination).
enum class SendOrder : std::uint8_t {
    kPeerByPeer,   ///< all rows to one destination, then the next, from rank 0 on: all senders meet
    kRotated,      ///< the same, but each rank starts with its right neighbour
    kInterleaved,  ///< every row to all destinations in turn: bursts stay short at each peer
};

struct SendStep {
    std::int64_t row;
    int destination;
};

/// Step `i` of `rows * world`; each (row, destination) once.
XSTAGE_HD constexpr SendStep send_step(SendOrder order, int rank, int world, std::int64_t rows,
                                       std::int64_t i) {
    if (order == SendOrder::kInterleaved)
        return {i / world, static_cast<int>((i + i / world + rank + 1) % world)};
    const int turn = static_cast<int>(i / rows);
    return {i % rows, order == SendOrder::kPeerByPeer ? turn : (turn + rank + 1) % world};
}

}  // namespace xstage::ulysses
