#pragma once

// What crosses from node to node when ranks store rows into each other's memory: who sends which
// bytes of which rows to whom, in chunks of which size, and where they lie on the way.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace xstage::plan {

/// A GPU's way to the other nodes. The rates are a 400 Gb/s port; put_ns is not measured here.
struct PutCosts {
    double rate = 50;         ///< of the network, bytes/ns (GB/s)
    double put_ns = 1500;     ///< one put keeps its sender this long before the next can go
    double copy_rate = 1000;  ///< at which rows are packed, and unpacked, bytes/ns
};

/// Time of a message of `bytes` in chunks: the first is packed, then each takes the longer of
/// put_ns and its own transfer, then the last is unpacked. The rest overlaps.
double put_message_ns(std::size_t bytes, std::size_t chunk_bytes, const PutCosts& costs);

/// The chunk that makes put_message_ns least for large messages: no smaller than hides put_ns under
/// the transfer is ever needed, and where unpacking weighs more, sqrt(bytes * put_ns / copy time
/// per byte). At least 1, at most `bytes`. Throws Error (kBadInput) for rates that are not
/// positive.
std::size_t put_chunk_bytes(std::size_t bytes, const PutCosts& costs);

/// The bytes of every row that one rank stores.
struct RowPart {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool operator==(const RowPart&) const = default;
};

/// Rows of equal length at equal distances in the memory of the rank that owns them.
struct PutBlock {
    std::size_t offset = 0, stride = 0;
    std::int64_t rows = 0;
    std::size_t bytes = 0;  ///< of a row
    bool operator==(const PutBlock&) const = default;
};

/// What `source` stores into memory of `dest` in a call.
using StoredBlocks = std::function<std::vector<PutBlock>(int source, int dest)>;

/// Where every rank stores its part of each of the rows that the others own.
StoredBlocks stored_parts(std::vector<std::int64_t> rows, std::size_t row_stride,
                          std::vector<RowPart> parts);

struct PutShape {
    std::vector<int> node;  ///< of each rank
    StoredBlocks stored;
    std::size_t chunk_bytes = 0;  ///< 0: put_chunk_bytes decides, for each message
    PutCosts costs;
};

/// A block that one rank sends to one rank of another node in a call. It lies packed, row after
/// row, in the sender's outbox and in the receiver's inbox; each chunk has a signal.
struct PutMessage {
    int source = 0, dest = 0;
    PutBlock block;
    std::int64_t rows_per_chunk = 0;
    std::int64_t chunks = 0;
    std::size_t outbox_offset = 0, inbox_offset = 0;
    std::size_t first_signal = 0;

    std::int64_t rows_of(std::int64_t chunk) const {
        const std::int64_t left = block.rows - chunk * rows_per_chunk;
        return left < rows_per_chunk ? left : rows_per_chunk;
    }
};

/// The sizes are those of the rank that needs most, since symmetric memory has one size.
struct PutPlan {
    std::vector<PutMessage> messages;  ///< by source, then by destination, nearest rank above first
    std::size_t outbox_bytes = 0, inbox_bytes = 0;
    std::size_t signals = 0;

    /// The messages that a rank sends, and those that it receives.
    std::vector<PutMessage> from(int rank) const;
    std::vector<PutMessage> to(int rank) const;
};

PutPlan plan_puts(const PutShape& shape);

}  // namespace xstage::plan
