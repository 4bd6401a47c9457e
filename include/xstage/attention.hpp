#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xstage/plan/attention_order.hpp"

namespace xstage {

namespace sparse {
class BlockMask;
}

enum class AttentionType { kBf16, kFp16 };

/// A tensor [batch][row][head][head_dim] somewhere in device memory. Strides in elements; elements
/// of a head are contiguous. Address and strides must be multiples of 16 bytes. stride_batch may be
/// 0 in K and V together: all batches then share them.
struct AttentionView {
    void* data = nullptr;
    std::int64_t stride_batch = 0, stride_row = 0, stride_head = 0;
};

/// Where `rows` rows of every head of the output go: this GPU's memory, a peer's, or a stitched
/// range. Row 0 of `view` is the first of them.
struct AttentionDestination {
    AttentionView view;
    std::int64_t rows = 0;
};

/// O = softmax(scale * Q K^T) V. Query head h reads key head h / (heads / kv_heads).
struct AttentionArguments {
    AttentionType type = AttentionType::kBf16;
    std::int64_t batches = 0, heads = 0, kv_heads = 0, q_rows = 0, kv_rows = 0;
    int head_dim = 128;  ///< 64 or 128
    AttentionView q, k, v;

    /// Consecutive chunks of the output's rows, together q_rows: one chunk for local or stitched
    /// output, one per rank for peers. Lengths need not be equal nor multiples of anything.
    std::vector<AttentionDestination> out;
    int rank = 0;  ///< which chunk is this GPU's own
    plan::TileOrder order = plan::TileOrder::kHeadMajor;

    float* lse = nullptr;  ///< [batch][head][row], natural logarithm; null if not wanted
    const std::int32_t* key_lengths = nullptr;  ///< device, per batch: keys behind it do not count

    float scale = 0;  ///< 0: 1/sqrt(head_dim); otherwise positive
    /// O is scaled anew once a row's maximum has outgrown the reference of its exponentials by
    /// 2^this. 0: at once, so that the largest probability is exactly 1 and errors are those of
    /// other kernels. Up to 8, which fp16 still holds: 2 to 8% faster, but the largest probability
    /// is rounded like any other (docs/attention.md has both figures).
    float rescale_above = 0;
    /// Row r attends to keys up to r + length - q_rows: the last row sees the last key.
    bool causal = false;

    /// Which blocks of 128 rows x 128 keys are computed; null: all. Copied when the plan is made.
    /// Its heads are 1, kv_heads or heads, its batches 1 or batches. With neither causal nor
    /// key_lengths, and with its own order of the tiles. Source of the method: docs/sparse.md.
    const sparse::BlockMask* mask = nullptr;

    int sm_limit = 0;      ///< CTAs to launch at most; 0: one per SM
    std::string instance;  ///< compiled instance by name; empty: the one predicted fastest
};

/// An attention call made ready: arguments checked, instance chosen, tensor maps encoded.
/// Tensors must outlive it; launches may be captured into a graph and replayed.
/// A row with no key that counts gives 0, and -inf in lse.
class AttentionPlan {
  public:
    /// Throws Error: kBadInput with the argument at fault, kUnsupported on any GPU that is not
    /// compute capability 9.0 (current device), kEnvironment if the CUDA runtime fails.
    explicit AttentionPlan(const AttentionArguments& arguments);
    ~AttentionPlan();
    AttentionPlan(AttentionPlan&&) noexcept;
    AttentionPlan& operator=(AttentionPlan&&) noexcept;

    /// Enqueues on `stream` (a cudaStream_t) of the device the plan was made on.
    /// Rows for a peer are written when the launch is complete in stream order.
    void launch(void* stream) const;

    /// The same call on other tensors: addresses and strides change, all else stays. Launches that
    /// are enqueued or captured keep theirs. Throws Error (kBadInput) if the chunks of `out` have
    /// other numbers of rows.
    void rebind(const AttentionView& q, const AttentionView& k, const AttentionView& v,
                const std::vector<AttentionDestination>& out, float* lse);

    const std::string& instance() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Names of the compiled instances without a block mask, for benchmarks and tests.
std::vector<std::string> attention_instances();
/// Those with one.
std::vector<std::string> block_sparse_instances();

}  // namespace xstage
