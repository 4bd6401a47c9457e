#pragma once

#include <memory>
#include <span>
#include <vector>

#include "xstage/fabric.hpp"
#include "xstage/moe/plan.hpp"
#include "xstage/stamp_layout.hpp"

namespace xstage::moe {

/// A rank's experts, row-major and contiguous, in memory that its kernels read; lent for the life
/// of the layer. A shared expert is the first of them.
struct Weights {
    const void* w1 = nullptr;  ///< [held experts][2 * intermediate][hidden]: gate rows, then up
    const void* w2 = nullptr;  ///< [held experts][hidden][intermediate]
    /// kFp8: [held experts][2 * intermediate / 128][hidden / 128] and
    /// [held experts][hidden / 128][intermediate / 128].
    const float* s1 = nullptr;
    const float* s2 = nullptr;
};

/// Where a rank's input stands in its workspace. A call with the same pointers copies nothing.
struct InputMemory {
    void* x;
    float* x_scale;  ///< null unless kFp8
    std::int32_t* experts;
    float* weights;
};

/// One rank's tokens. Any of the four inputs may lie elsewhere; it is then copied in stream order.
struct Input {
    int tokens = 0;
    const void* x = nullptr;                ///< [tokens][hidden]
    const float* x_scale = nullptr;         ///< kFp8: [tokens][hidden / 128]
    const std::int32_t* experts = nullptr;  ///< [tokens][top_k]; negative: no route in this slot
    const float* weights = nullptr;         ///< [tokens][top_k]
    /// Number of tokens on the device, read by the kernel in place of `tokens` and limited to
    /// max_tokens: what a captured graph needs when it changes. `tokens` then bounds the copies.
    const std::int32_t* tokens_at = nullptr;
    /// bf16 [tokens][hidden]. A token without routes becomes exactly 0 (or what the shared expert
    /// gives), one with an expert that does not exist NaN, and every token NaN when the group is
    /// broken.
    void* y = nullptr;
};

/// A mixture-of-experts layer over ranks that each hold a part of the experts, in one kernel:
/// rows are pulled from their ranks, both matrix products and SwiGLU run tile by tile in the order
/// that the plan says, results are stored to the tokens' ranks and added in slot order and fp32.
/// Results do not depend on the order, nor on other tokens. Collective to build and to call; the
/// same rules as for Fabric. Calls allocate nothing and can be captured into CUDA graphs.
class MegaMoe {
  public:
    /// One Weights per rank of this process, in the order of Fabric::local_ranks().
    MegaMoe(fabric::Fabric& fabric, const Problem& problem, std::span<const Weights> weights,
            const Options& options = {});
    ~MegaMoe();
    MegaMoe(const MegaMoe&) = delete;
    MegaMoe& operator=(const MegaMoe&) = delete;

    const Problem& problem() const;
    const Layout& layout() const;
    /// Bytes that each rank holds for this object.
    std::size_t memory_bytes() const;
    InputMemory input_memory(int rank) const;

    /// Of the next calls. All ranks may walk in different orders. Throws Error (kBadInput) for one
    /// that the ring is too small for.
    void set_order(const plan::MoeOrder& order);
    void set_store_path(StorePath path);

    /// Rows of stamps that a rank's launch writes, one for each warp that stores; 0 on the host.
    int stamp_producers() const;
    /// From the next call on the kernel stamps every burst of Linear-2's stores: of one warp, up to
    /// 16 rows of 256 columns. `bytes` is their payload, `destination` the number of rows that went
    /// to other ranks. One buffer per rank of this process, lent until the next set_stamps; none:
    /// the kernel without stamps runs again. Throws Error (kBadInput) for a buffer with fewer than
    /// stamp_producers() producers, (kUnsupported) on the host backend. Not while capturing.
    void set_stamps(std::span<const StampBuffer> buffers);

    /// One input per rank of this process. Throws Error (kBadInput) before anything is launched
    /// when an input is missing, misaligned or has more than max_tokens.
    void run(std::span<const Input> inputs, const fabric::Streams& streams = {});

    struct Impl;

  private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace xstage::moe
