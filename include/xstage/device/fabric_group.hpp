#pragma once

#include <cstdint>

#include "xstage/fabric/signals.hpp"

namespace xstage::device {

/// What the kernels of one device need to know of a group; passed by value, baked into graphs, and
/// constant for the life of the group. Everything that counts lives in device memory.
struct FabricGroup {
    fabric::SignalBlock* block[fabric::kMaxRanks];  ///< every rank's, as this process maps them
    fabric::RankState* state;                       ///< one per rank of this device
    fabric::FailureReport* report;                  ///< pinned, one per rank of this device
    const std::uint64_t* stop;  ///< pinned; the host writes a Failure to end waits
    std::uint64_t timeout_ns;
    std::uint8_t ranks[fabric::kMaxRanks];  ///< rank of each block
    std::uint8_t world;
    std::uint8_t local;  ///< ranks of this device
    bool trap;
};

}  // namespace xstage::device
