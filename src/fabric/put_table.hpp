#pragma once

// What the engines and kernels need of a plan of puts: one entry per message.

#include <cstddef>
#include <cstdint>

#include "xstage/fabric/signals.hpp"

namespace xstage::fabric {

/// Of a rank: Q, K and V of 15 others, and as much as kernels take as parameters everywhere.
inline constexpr int kMaxPutEntries = 48;

struct PutEntry {
    int peer;
    std::int64_t rows, rows_per_chunk;
    std::byte* rows_at;  ///< first row's part: of the staged chunk, or of the receive buffer
    std::size_t row_stride, part_bytes;
    std::byte* packed;  ///< in the outbox, or in the inbox
    /// Sending only: the place in the peer's inbox and its signals, as the heap names them.
    std::byte* target;
    std::uint64_t* signals;  ///< one per chunk; receiving: this rank's own

    XSTAGE_HD constexpr std::int64_t rows_of(std::int64_t chunk) const {
        const std::int64_t left = rows - chunk * rows_per_chunk;
        return left < rows_per_chunk ? left : rows_per_chunk;
    }
    XSTAGE_HD constexpr std::int64_t chunks() const {
        return (rows + rows_per_chunk - 1) / rows_per_chunk;
    }
};

/// Item i is chunk i / entries of entry i % entries, where there is one: all peers are served at
/// once, and every peer's chunks in their order.
struct PutTable {
    PutEntry entry[kMaxPutEntries];
    int entries = 0;
    std::int64_t most_chunks = 0;  ///< of any entry

    XSTAGE_HD constexpr std::int64_t items() const { return most_chunks * entries; }
};
static_assert(sizeof(PutTable) <= 3584, "4096 bytes of parameters hold the group and call too");

}  // namespace xstage::fabric
