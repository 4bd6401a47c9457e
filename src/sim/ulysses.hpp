#pragma once

#include <cstdint>

#include "sim/node.hpp"
#include "sim/workload.hpp"
#include "xstage/plan/attention_order.hpp"

namespace xstage::sim {

/// How the output rows find their GPU.
enum class Layout {
    kPeers,    ///< the kernel knows its peers: any tile order
    kPadded,   ///< one stitched query axis, chunk after chunk
    kPages,    ///< the same with single pages of the GPUs in turn
    kBatched,  ///< the chunk is the batch index: all tiles of a chunk in one run
};

/// Which chunk a rank's stitched range begins with.
enum class FirstChunk { kRankZero, kOwn, kPeer };

/// Attention on S rows and heads / gpus heads per GPU, whose output rows go to the GPUs that own
/// them: GPU d owns the d-th part of the sequence (the first parts one row longer where S does not
/// divide).
struct Ulysses {
    std::int64_t sequence = 0;
    int heads = 0;  ///< over all GPUs; must divide by the number of GPUs
    int head_dim = 128;
    int batch = 1;
    int element_bytes = 2;
    int tile_rows = 128;
    double page_bytes = 2 << 20;
    int tile_columns = 176;  ///< of keys per step of the kernel's inner loop
    bool clusters = true;    ///< pairs of CTAs share the loads of keys and values
    /// From one output row to the next where they arrive; 0: packed, or padded to a power of two.
    double row_pitch = 0;
    Layout layout = Layout::kPeers;
    plan::TileOrder order = plan::TileOrder::kHeadMajor;  ///< kPeers only
    FirstChunk first = FirstChunk::kRankZero;             ///< stitched layouts only
    /// SMs that compute nothing and carry the rows that the others stored to their owners.
    int copying_sms = 0;
    bool all_remote = false;  ///< a control: own rows go to the next GPU as well
    bool all_local = false;   ///< a control: no row leaves its GPU
    /// Kernel time with local stores; 0: from the arithmetic at the node's bf16 rate.
    double attention_ns = 0;
    /// Standard deviation of the tiles' times, relative: tiles of one wave do not end together.
    double tile_spread = 0.002;
    /// How long the next tile may compute before this tile's stores must have been accepted; a
    /// negative value: half a step of the inner loop, after which the kernel needs the shared
    /// memory that the stores read from.
    double free_ns = -1;

    /// Rows of one page where pages take turns.
    std::int64_t page_rows() const;
    double pitch() const;
    /// Compute time of a tile on a GPU with this many SMs.
    double tile_ns(const Cluster& cluster) const;
    std::int64_t tiles(const Cluster& cluster) const;
    /// Tiles of the SM that has most of them.
    double waves(const Cluster& cluster) const;
};

/// Throws kBadInput where the shape does not fit the cluster (heads, destinations).
ProgramFactory ulysses_programs(const Cluster& cluster, const Ulysses& shape);

}  // namespace xstage::sim
