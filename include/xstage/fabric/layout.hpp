#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace xstage::fabric {

/// How the rows of P ranks are laid out in one contiguous range (docs/fabric.md has the pictures).
enum class LayoutKind {
    /// The destination is the batch index: [P, S_local, row]. Receive buffers are packed. All ranks
    /// hold the same number of rows, save the last, which may hold another number ("apart": a
    /// kernel with one S_local for all batches takes it in a call of its own).
    kBatched,
    /// One row axis with pad rows between the chunks; the row stride is a divisor of the page.
    /// Any row counts.
    kPadded,
};

/// Which rank's rows follow which along the range.
enum class ChunkOrder {
    kWhole,  ///< the chunks one after the other
    kPages,  ///< single pages in turn, one from each rank that has some left (padded only)
};

struct LayoutSpec {
    LayoutKind kind = LayoutKind::kPadded;
    ChunkOrder order = ChunkOrder::kWhole;
    std::vector<std::int64_t> rows;  ///< rows per rank; 0 is allowed in `padded`
    std::size_t row_bytes = 0;       ///< bytes of a whole row (all heads), not of one sender's part
    std::size_t page_bytes = 0;      ///< the mapping granularity, as the device reports it
    std::int64_t tile_rows = 128;    ///< rows of one kernel tile, for the count of tiles added
    std::vector<int> rank_order;     ///< a permutation of the ranks; empty: 0, 1, 2, ...
};

/// One run of bytes of the range that one rank's memory stands behind. Both offsets and the length
/// are whole pages.
struct Segment {
    int owner;
    std::size_t owner_offset;
    std::size_t range_offset;
    std::size_t bytes;
};

/// Where a row is, seen from its owner.
struct RowPlace {
    int owner;
    std::int64_t row;
    bool operator==(const RowPlace&) const = default;
};

/// A layout worked out: strides, paddings, segments, and what it costs.
struct StitchedLayout {
    LayoutSpec spec;
    std::size_t row_stride = 0;    ///< bytes between rows, in the range and in every receive buffer
    std::size_t batch_stride = 0;  ///< `batched`: bytes between chunks; 0 in `padded`
    std::size_t range_bytes = 0;   ///< length of the mapped range
    std::int64_t axis_rows = 0;    ///< rows from the first to the last row that holds data
    bool last_apart = false;       ///< `batched`: the last chunk's row count differs
    std::vector<std::size_t> chunk_bytes;  ///< memory of each rank for one buffer
    std::vector<Segment> segments;         ///< in range order, without gaps

    std::int64_t tiles = 0;        ///< tiles that a kernel runs over this layout
    std::int64_t tiles_dense = 0;  ///< tiles over the same rows packed on one axis (batch 1)
    std::int64_t tiles_added() const { return tiles - tiles_dense; }
    double tiles_added_share() const;
    /// Memory of all ranks over the bytes of their rows; 1 when nothing is padded.
    double memory_ratio() const;

    int world() const { return static_cast<int>(spec.rows.size()); }
    /// Byte offset in the range of a rank's row. Throws Error (kBadInput) for a row nobody has.
    std::size_t offset_of(int rank, std::int64_t row) const;
    /// Byte offset in the rank's own receive buffer: rows in natural order, whatever the range
    /// does.
    std::size_t receive_offset(int rank, std::int64_t row) const;
    /// Who owns the row that starts at this offset of the range; nothing for a pad row.
    std::optional<RowPlace> owner_at(std::size_t range_offset) const;
};

/// The smallest divisor of `page_bytes` that holds a row; the row rounded up to whole pages when a
/// row is longer than a page.
std::size_t padded_row_stride(std::size_t row_bytes, std::size_t page_bytes);

/// Works a layout out. Throws Error (kBadInput) when the numbers make none, saying which.
StitchedLayout make_layout(const LayoutSpec& spec);

}  // namespace xstage::fabric
