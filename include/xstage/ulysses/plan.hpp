#pragma once

// What an attention call over several ranks does, worked out once on the host from shapes alone.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "xstage/fabric.hpp"
#include "xstage/ulysses/order.hpp"

namespace xstage::ulysses {

/// Where text that every rank holds stands among the keys (and in a gathered Q).
enum class TextPlace { kFront, kRear };

/// One attention over `rows_q.size()` ranks. Rows are sharded outside attention, heads inside.
struct Problem {
    int batch = 1;
    int heads_q = 0;
    int heads_kv = 0;  ///< 0: as many as heads_q; otherwise a divisor of it
    int head_dim = 0;
    std::vector<std::int64_t> rows_q;   ///< per rank and sample; a rank may have none
    std::vector<std::int64_t> rows_kv;  ///< empty: as rows_q
    std::int64_t text_q = 0;            ///< rows that all ranks hold alike
    std::int64_t text_kv = 0;
    TextPlace text_place = TextPlace::kRear;
    fabric::DType dtype = fabric::DType::kBf16;
    bool with_lse = false;
    bool with_lengths = false;   ///< per-sample key lengths; they count from the first key
    std::int64_t out_pitch = 0;  ///< elements between rows of the result; 0: heads_q * head_dim

    int world() const { return static_cast<int>(rows_q.size()); }
    std::int64_t kv_rows(int rank) const { return rows_kv.empty() ? rows_q[rank] : rows_kv[rank]; }
    int kv_heads() const { return heads_kv == 0 ? heads_q : heads_kv; }
    std::int64_t pitch() const {
        return out_pitch == 0 ? std::int64_t{heads_q} * head_dim : out_pitch;
    }
    std::int64_t image_q() const;
    std::int64_t image_kv() const;
};

/// Throws Error (kBadInput) that says what is wrong, the same on every rank.
void check(const Problem& problem);

/// `rows` over `world` ranks as evenly as can be; the first ones hold one more.
std::vector<std::int64_t> split_rows(std::int64_t rows, int world);

struct HeadRange {
    int begin = 0;
    int end = 0;
    int count() const { return end - begin; }
    bool operator==(const HeadRange&) const = default;
};

/// Which heads each rank computes. Whole heads, unevenly where they must be, none padded. A rank's
/// query heads share its key heads in equal groups, as attention kernels expect. A key head goes to
/// several ranks when there are fewer of them than ranks.
struct Heads {
    std::vector<HeadRange> q;
    std::vector<HeadRange> kv;
    int max_q() const;
    int max_kv() const;
};
/// Throws Error (kBadInput) when a rank would have no head.
Heads split_heads(int heads_q, int heads_kv, int world);

enum class Layout {
    kAuto,
    kBatched,  ///< the destination is the kernel's batch index
    kPadded,   ///< one query axis, chunk after chunk, pad rows between
    kPages,    ///< one query axis, single pages of the ranks in turn
    kSplit,    ///< a kernel call per destination: any rows, any kernel
    kScatter,  ///< packed scratch, and a kernel of ours sends its rows: the serial way
    kPeers,    ///< the kernel itself knows where each rank's rows go (Plug::stores_to_peers)
};
const char* name_of(Layout layout);

/// What the planner knows of the node; defaults were measured on two H200 (docs/ulysses.md).
struct NodeFacts {
    int processors = 132;
    double drain_gb_per_s = 372;  ///< kernel stores to a peer, sustained
    double room_bytes = 2.3e6;    ///< accepted before the stores of all SMs stall
    double tflops = 650;          ///< of the attention kernel, over all SMs
    double memory_gb_per_s = 4200;
    double drift = 0.5;       ///< how much of a wave's burst is still in step one wave later
    double launch_ns = 2000;  ///< a kernel call more, between the end of one and the next's start

    /// All ranks on one GPU: their stores never cross a link.
    static NodeFacts one_gpu();
};

struct PlanOptions {
    Layout layout = Layout::kAuto;
    std::size_t page_bytes = std::size_t{2} << 20;
    std::int64_t tile_rows = 128;  ///< of the attention kernel
    /// Q will be in memory of ours, where rows may stand in any order; a foreign Q is in natural
    /// order and must be copied for `padded` and `pages`.
    bool own_q = true;
    /// The kernel takes a destination per rank, as kPeers needs.
    bool peers = false;
    double max_tile_ratio = 1.03;
    /// Of a padded result over its rows. kAuto leaves dearer layouts out; packed ones always stay.
    double max_memory_ratio = 2;
    NodeFacts node;
};

/// One call of the attention kernel on a rank. Rows count from the sample's first query.
struct Block {
    int sample = 0;
    int batch = 1;  ///< batch indices that share the sample's keys and values
    std::int64_t rows = 0;
    std::int64_t q_row = 0;         ///< first row in the query buffer
    std::int64_t q_batch_rows = 0;  ///< rows between batch indices there
    int tensor = 0;                 ///< which stitched tensor
    std::size_t out_offset = 0;     ///< bytes from the start of its range, before the head offset
    std::size_t out_batch_bytes = 0;
    std::size_t out_row_bytes = 0;
};

struct Prediction {
    double plain_ns = 0;     ///< the kernel alone, storing locally
    double overhead_ns = 0;  ///< tiles added, stalls, the last burst's drain and copies
    double share() const { return plain_ns > 0 ? overhead_ns / plain_ns : 0; }
};

struct Plan {
    Problem problem;
    Heads heads;
    Layout layout = Layout::kBatched;
    bool own_q = true;
    bool copies_q = false;  ///< a foreign Q is copied into the order of the axis
    int tensors = 1;        ///< one per sample where the axis cannot hold two
    fabric::StitchedOptions stitched;
    AxisMap q_map;                ///< row (rank, row) in the query buffer
    std::int64_t q_rows = 0;      ///< rows of a sample in the query buffer, pads and text included
    std::int64_t q_text_row = 0;  ///< where its text starts
    std::vector<Block> blocks;    ///< image rows; text is one more call
    std::int64_t tiles = 0;       ///< per head and sample
    std::int64_t tiles_dense = 0;
    double tile_ratio() const;
    std::size_t out_bytes = 0;  ///< per rank and buffer: the stitched result
    double memory_ratio = 1;    ///< of it, over the bytes of its rows
    Prediction prediction;      ///< of the slowest rank

    /// Byte offset of a rank's row in its receive buffer, head 0.
    std::size_t receive_offset(int sample, std::int64_t row, int rank) const;
    std::size_t receive_batch_bytes(int rank) const;  ///< between samples in one tensor
    std::size_t out_row_bytes() const;
};

/// Works the plan out; `kAuto` takes the layout with the least predicted time among those within
/// the limits, and the one with the least memory where predictions are within 0.5%. Throws Error
/// (kBadInput) when the layout asked for cannot serve the problem.
Plan make_plan(const Problem& problem, const PlanOptions& options = {});

/// One line: layout, calls, tiles added, memory, prediction.
std::string describe(const Plan& plan);

/// The time of one rank's kernels: tiles in the kernel's order (rows fastest, then heads, then
/// batch) in waves of one per SM. `owner(block, batch, tile)` is the tile's destination, and a
/// destination unlike `rank` is remote. Method: docs/ulysses.md, "Which order when".
struct TileRun {
    std::int64_t tiles = 0;  ///< of one head
    std::vector<int> owner;  ///< per tile of one head
};
Prediction predict_runs(const NodeFacts& node, const std::vector<TileRun>& runs, int heads,
                        std::int64_t keys, int head_dim, std::int64_t tile_rows, int rank);

}  // namespace xstage::ulysses
