#pragma once

// Where rows go and in which order they are sent, as pure functions that the kernels, the host
// backend, the planner and the tests all call.

#include <cstdint>

#include "xstage/fabric/signals.hpp"

namespace xstage::ulysses {

/// a / b of numbers that are not negative. They mostly fit 32 bits, and a division of 64 costs a
/// kernel more than the copy of a head.
XSTAGE_HD constexpr std::int64_t quotient(std::int64_t a, std::int64_t b) {
    if ((a | b) >> 31 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
}

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
    const std::int64_t unit = quotient(row, map.unit_rows);
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
    if (order == SendOrder::kInterleaved) {
        const std::int64_t row = quotient(i, world);
        const std::int64_t step = i + row + rank + 1;
        return {row, static_cast<int>(step - quotient(step, world) * world)};
    }
    const std::int64_t turn = quotient(i, rows);
    const int first = order == SendOrder::kPeerByPeer ? 0 : rank + 1;
    return {i - turn * rows, (static_cast<int>(turn) + first) % world};
}

}  // namespace xstage::ulysses
