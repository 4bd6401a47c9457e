#pragma once

#include <cstdint>

namespace xstage {

/// One burst of stores as its producer saw it. Little-endian, 48 bytes; written by
/// xstage/device/stamp.cuh and read by xstage/stamps.hpp. A slot never written is all zero.
struct alignas(16) Stamp {
    std::uint64_t issue_start_cycles;  ///< of the producer's SM
    std::uint64_t issue_end_cycles;
    std::uint64_t issue_start_ns;  ///< of the GPU's global timer, steps of 32 ns on Hopper
    std::uint64_t issue_end_ns;
    std::uint32_t producer;
    std::uint32_t sm;
    std::uint32_t bytes;  ///< payload
    std::uint32_t destination;
};
static_assert(sizeof(Stamp) == 48);

/// Where a kernel puts its stamps: `producers` rows of `bursts_per_producer` slots, zeroed before
/// the launch, and one counter for stamps that found no room. Passed to the kernel by value.
struct StampBuffer {
    Stamp* stamps;
    std::uint32_t* dropped;
    std::uint32_t producers;
    std::uint32_t bursts_per_producer;
};

}  // namespace xstage
