#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "xstage/fabric.hpp"
#include "xstage/ulysses/order.hpp"
#include "xstage/ulysses/transform.hpp"

namespace xstage::ulysses {

/// Rows of one rank to places on other ranks (or here): LSE, text rows, packed results, copies.
struct RowScatter {
    const std::byte* from = nullptr;
    std::int64_t from_batch = 0, from_row = 0, from_head = 0;  ///< bytes
    std::byte* to[fabric::kMaxRanks] = {};                     ///< null: nothing for this rank
    std::int64_t to_batch[fabric::kMaxRanks] = {};             ///< bytes
    std::int64_t to_row = 0, to_head = 0;
    std::int64_t rows[fabric::kMaxRanks] = {};
    AxisMap from_map;  ///< row of (destination, row) at the source
    AxisMap to_map;    ///< and at the destination
    int world = 0;
    int first = 0;  ///< destination to begin with, so that senders do not meet
    int batch = 1;
    int heads = 1;
    int bytes = 0;                     ///< contiguous, per (row, head)
    bool rows_inside = false;          ///< neighbouring threads take neighbouring rows (LSE)
    const std::byte* scale = nullptr;  ///< factor per (sample, row, head), in `dtype`
    std::int64_t scale_batch = 0, scale_row = 0;  ///< bytes
    fabric::DType dtype = fabric::DType::kU8;
};

/// Heads of a rank's projection to their owners, normalised and rotated on the way.
struct HeadScatter {
    fabric::DType dtype = fabric::DType::kBf16;
    int rank = 0;
    int world = 0;
    int head_dim = 0;
    int batch = 1;
    std::int64_t rows = 0;
    int heads = 0;  ///< of the projection, for a norm over the full width
    const void* from = nullptr;
    std::int64_t from_batch = 0, from_row = 0, from_head = 0;  ///< elements
    int first_head[fabric::kMaxRanks] = {};
    int head_count[fabric::kMaxRanks] = {};  ///< 0: nothing for this rank
    void* to[fabric::kMaxRanks] = {};
    std::int64_t to_batch[fabric::kMaxRanks] = {};  ///< elements
    std::int64_t to_row[fabric::kMaxRanks] = {};    ///< head_dim elements between heads
    AxisMap map;                                    ///< of (map_rank, row) at every destination
    int map_rank = 0;
    Norm norm;
    Rotary rotary;
    float* rstd = nullptr;  ///< room for [batch, rows], for a norm over the full width
    SendOrder order = SendOrder::kInterleaved;
    int blocks = 0;
};

/// Projections of one rank that leave together, in this order.
struct HeadExchange {
    static constexpr int kMost = 3;
    HeadScatter part[kMost];
    int count = 0;
};

/// Heads sent in all; a head that goes to two ranks counts twice.
XSTAGE_HD inline int sent_heads(const HeadScatter& s) {
    int total = 0;
    for (int p = 0; p < s.world; ++p) total += s.head_count[p];
    return total;
}

/// Moves data with plain stores that reach peers through mapped memory.
class Mover {
  public:
    virtual ~Mover() = default;
    virtual void move(const RowScatter& scatter, int local, void* stream) = 0;
    virtual void move(const HeadExchange& exchange, int local, void* stream) = 0;
    virtual void* stream(const fabric::Streams& streams, int local) const = 0;
    /// Makes the device of a local rank current, for a plug that launches there.
    virtual void select(int) const {}
};

std::unique_ptr<Mover> make_host_mover();
/// Throws Error (kUnsupported) in a build without CUDA.
std::unique_ptr<Mover> make_cuda_mover(const fabric::Fabric& fabric);

}  // namespace xstage::ulysses
