#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "xstage/fabric.hpp"
#include "xstage/ulysses/plan.hpp"
#include "xstage/ulysses/transform.hpp"

namespace xstage::sparse {
class BlockMask;
}

namespace xstage::ulysses {

/// [batch, rows, heads, head_dim] in the problem's dtype; the last dimension is contiguous. Strides
/// in elements, any sign of them within 64 bits: columns of a fused projection are views too.
struct View {
    void* data = nullptr;
    std::int64_t batch_stride = 0;
    std::int64_t row_stride = 0;
    std::int64_t head_stride = 0;
    explicit operator bool() const { return data != nullptr; }
};
/// A packed [batch, rows, heads, dim].
View packed(void* data, std::int64_t rows, int heads, int dim);

/// fp32 [batch, heads, rows], rows contiguous.
struct LseView {
    float* data = nullptr;
    std::int64_t batch_stride = 0;
    std::int64_t head_stride = 0;
};

/// What an attention kernel is asked to do. Tensors are ordinary strided tensors of one rank; the
/// stores to `out` may land on other GPUs, which is not the kernel's business.
struct AttentionCall {
    int rank = 0;
    int batch = 1;
    std::int64_t rows_q = 0;
    std::int64_t rows_kv = 0;
    int heads_q = 0;
    int heads_kv = 0;
    int head_dim = 0;
    fabric::DType dtype = fabric::DType::kBf16;
    float scale = 1;
    View q, k, v;  ///< k and v have batch stride 0 when all batch indices share them
    View out;
    /// With Plug::stores_to_peers, instead of `out`: consecutive rows, the first peer_rows[0] of
    /// them to peer_out[0], and so on. `rank` names the own one.
    int peers = 0;
    View peer_out[fabric::kMaxRanks];
    std::int64_t peer_rows[fabric::kMaxRanks] = {};
    LseView lse;                               ///< data is null when nobody wants it
    const std::int32_t* kv_lengths = nullptr;  ///< per batch index of k, in k's memory; null: all
    std::int64_t kv_lengths_stride = 0;        ///< 0 when all batch indices share one length
    /// With Options::masked: which blocks of this rank's heads are computed; batches 1 or `batch`.
    const sparse::BlockMask* mask = nullptr;
    std::uint64_t mask_id = 0;  ///< unlike that of any other mask of this process
    void* stream = nullptr;     ///< cudaStream_t; null on `host`
    /// Set when the plug does not store to `out`: a kernel with a result of its own says here where
    /// it stands (on this rank's GPU, until the stream has passed the call) and leaves `out` alone.
    View* own_out = nullptr;
};
using AttentionKernel = std::function<void(const AttentionCall&)>;

/// The attention kernel that is plugged in.
struct Plug {
    /// Empty: cuDNN (ulysses/cudnn.hpp), and reference_attention on `host`.
    AttentionKernel run;
    std::string name = "callback";
    /// False for a kernel that cannot be given its output's memory: `out` is then packed local
    /// scratch, and a scatter kernel sends it on.
    bool stores_to_out = true;
    std::int64_t tile_rows = 128;
    /// Also understands AttentionCall::peers: its tiles may then alternate among the ranks without
    /// pad rows. `out` must still do.
    bool stores_to_peers = false;
    /// Also understands AttentionCall::mask.
    bool takes_mask = false;
};

/// Attention in plain fp32 on the host, row by row; the host backend's default plug. A row without
/// a valid key gives 0 and an LSE of -inf. Understands block masks.
void reference_attention(const AttentionCall& call);

/// Memory of the caller that takes a copy of a result instead of lending ours.
struct Destination {
    View out;       ///< [batch, S_local, heads_q, head_dim], any row pitch
    View text_out;  ///< [batch, text_q, heads_q, head_dim]
    /// Per (sample, row, head) factors in the dtype, applied to `out` in place or on the copy.
    const void* head_scale = nullptr;
    std::int64_t head_scale_batch = 0;
    std::int64_t head_scale_row = 0;
};

/// Q, K, V of one rank, gathered by heads: [batch, image and text rows, its heads, head_dim].
struct GatheredInput {
    View q, k, v;
    const std::int32_t* kv_lengths = nullptr;
    float scale = 0;  ///< 0: 1 / sqrt(head_dim)
    Destination to;
};

/// One of Q, K, V as a rank's projection leaves it: its own rows of all heads.
struct Projection {
    View image;
    View text;  ///< rows that all ranks hold
    Norm norm, text_norm;
    Rotary rotary, text_rotary;
};
struct ShardedInput {
    Projection q, k, v;
    const std::int32_t* kv_lengths = nullptr;
    float scale = 0;
    Destination to;
};

/// A rank's rows of the result, all heads. Without a destination it is lent: valid on the stream
/// until the next call's start.
struct Result {
    View out;                   ///< null when the samples are not a constant distance apart
    std::vector<View> samples;  ///< the same, one view per sample
    View text_out;
    LseView lse;
    LseView text_lse;
};

struct Options {
    PlanOptions plan;
    Plug plug;
    int buffers = 2;
    SendOrder order = SendOrder::kInterleaved;
    int blocks = 0;      ///< of the first all-to-all; 0: as many as the GPU holds
    bool attend = true;  ///< memory for the first all-to-all too; false: attend_and_scatter alone
    /// Calls compute the blocks of a mask (UlyssesAttention::set_mask), on rows in natural order:
    /// the layout is kPeers or kScatter. Without text and key lengths.
    bool masked = false;
};

/// Attention over ranks whose sequence is sharded: heads are gathered by one kernel that stores to
/// the peers, and the attention kernel's own stores bring the result back. Collective to build and
/// to call; the same rules as for Fabric. Calls allocate no device memory, never wait on the host,
/// and can be captured into CUDA graphs.
class UlyssesAttention {
  public:
    UlyssesAttention(fabric::Fabric& fabric, const Problem& problem, const Options& options = {});
    ~UlyssesAttention();
    UlyssesAttention(const UlyssesAttention&) = delete;
    UlyssesAttention& operator=(const UlyssesAttention&) = delete;

    const Plan& plan() const;
    /// Bytes that each rank holds for this object.
    std::size_t memory_bytes() const;

    /// One input and one result per rank of this process, in the order of Fabric::local_ranks().
    std::vector<Result> attend_and_scatter(const std::vector<GatheredInput>& inputs,
                                           const fabric::Streams& streams = {});
    std::vector<Result> attend(const std::vector<ShardedInput>& inputs,
                               const fabric::Streams& streams = {});

    /// Which blocks of the whole attention the next calls compute, with Options::masked; the same
    /// on every rank. Its heads are 1, heads_kv or heads_q, its batches 1 or `batch`, its rows all
    /// ranks'. Throws Error (kBadInput) if it does not fit.
    void set_mask(std::shared_ptr<const sparse::BlockMask> mask);

    /// Turns with each call by itself; set it where calls must use a certain buffer.
    void use_buffer(int buffer);
    /// The result's memory, known before the call: a fused block may write its other columns there.
    View out_memory(int buffer, int rank) const;
    /// Memory for a rank's gathered Q, rows in the order of plan().q_map: attend_and_scatter takes
    /// a Q that stands there as it is. Only with Options::attend.
    View query_memory(int rank) const;
    /// Leaves the receiver's wait out of the next calls; finish() makes up for it.
    void set_deferred(bool deferred);
    std::vector<Result> finish(const fabric::Streams& streams = {});

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace xstage::ulysses
