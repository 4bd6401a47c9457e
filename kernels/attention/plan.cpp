#include <cuda_runtime.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "causal_order.hpp"
#include "choice.hpp"
#include "instance.hpp"
#include "params.hpp"
#include "plan_blocks.hpp"
#include "tensor_map.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

namespace xstage {

namespace {

using attention::Instance;
using attention::KernelParams;
using attention::MaskKind;

void check_cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess) {
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(status)));
    }
}

void require(bool condition, const char* what) {
    if (!condition) throw Error(ErrorKind::kBadInput, fmt::format("attention: {}", what));
}

void check_arguments(const AttentionArguments& a) {
    constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max() - 512;
    require(a.head_dim == 64 || a.head_dim == 128, "head_dim must be 64 or 128");
    require(a.batches >= 0 && a.heads >= 1 && a.kv_heads >= 1, "batches, heads or kv_heads");
    require(a.heads % a.kv_heads == 0, "heads must be a multiple of kv_heads");
    require(a.q_rows >= 0 && a.q_rows <= kMostRows, "q_rows must be below 2^31 - 512");
    require(a.kv_rows >= 0 && a.kv_rows <= kMostRows, "kv_rows must be below 2^31 - 512");
    require(a.heads <= kMostRows && a.batches <= kMostRows, "heads or batches");
    require(a.scale >= 0 && std::isfinite(a.scale), "scale must be positive, or 0 for the default");
    require(a.rescale_above >= 0 && a.rescale_above <= 8, "rescale_above must be 0 to 8");
    require((a.k.stride_batch == 0) == (a.v.stride_batch == 0) || a.batches <= 1,
            "K and V must share their batches together or not at all");
    require(!a.out.empty() && a.out.size() <= plan::kMaxDestinations, "out needs 1 to 8 chunks");
    require(a.rank >= 0 && a.rank < static_cast<int>(a.out.size()), "rank must name a chunk");
    std::int64_t rows = 0;
    for (const AttentionDestination& d : a.out) {
        require(d.rows >= 0, "a chunk has a negative number of rows");
        rows += d.rows;
    }
    require(rows == a.q_rows, "the chunks of out must have q_rows rows together");
}

/// SMs of the current device, once it is known to be able to run these kernels.
int hopper_sms() {
    int device = 0;
    int major = 0;
    int minor = 0;
    int sms = 0;
    check_cuda(cudaGetDevice(&device), "no CUDA device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device");
    if (major != 9 || minor != 0) {
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("this attention kernel uses instructions of compute capability 9.0 "
                                "(H100, H200) and the device has {}.{}; use cuDNN or another "
                                "attention kernel, with a stitched output for remote rows",
                                major, minor));
    }
    return sms;
}

AttentionTypeAndShape shape_of(const AttentionArguments& a) {
    return {a.type,   a.head_dim, a.causal ? MaskKind::kCausal : MaskKind::kDense,
            a.q_rows, a.kv_rows,  a.heads * a.batches};
}

void fill_grid(KernelParams& p, const AttentionArguments& a, const Instance& instance, int sms) {
    const int unit = instance.rows;
    plan::AttentionGrid& grid = p.grid;
    grid.tiles = static_cast<std::int32_t>((a.q_rows + unit - 1) / unit);
    grid.heads = static_cast<std::int32_t>(a.heads);
    grid.batches = static_cast<std::int32_t>(a.batches);
    grid.destinations = static_cast<std::int32_t>(a.out.size());
    grid.rank = a.rank;
    grid.order = a.order;
    grid.descending = a.causal;
    if (a.causal && a.order == plan::TileOrder::kHeadMajor) {
        grid.order = plan::TileOrder::kLongestFirst;
        grid.group = attention::causal_group(
            grid, {instance.rows, instance.keys, a.q_rows, a.kv_rows}, sms,
            attention::heads_in_l2(a.kv_rows, a.head_dim) * (a.heads / a.kv_heads));
    }
    std::int64_t row = 0;
    p.destinations.count = grid.destinations;
    for (int d = 0; d < grid.destinations; ++d) {
        // A tile that straddles two chunks counts as the one its first row is in.
        p.destinations.row_begin[d] = static_cast<std::int32_t>(row);
        grid.tile_begin[d] = static_cast<std::int32_t>((row + unit - 1) / unit);
        row += a.out[d].rows;
    }
    p.destinations.row_begin[grid.destinations] = static_cast<std::int32_t>(row);
    grid.tile_begin[grid.destinations] = grid.tiles;
    plan::set_rounds(grid);
}

void fill_maps(KernelParams& p, const AttentionArguments& a, const Instance& instance) {
    using attention::encode_map;
    const int panels = a.head_dim / 64;
    constexpr int kGroupRows = 64;
    p.q =
        encode_map("q", a.q, a.type, a.q_rows, a.head_dim, a.heads, a.batches, kGroupRows, panels);
    const bool shared = a.k.stride_batch == 0;
    p.kv_batch_step = shared ? 0 : 1;
    const std::int64_t kv_batches = shared ? 1 : a.batches;
    if (a.kv_rows == 0) {  // no key is ever loaded; the maps only have to be valid
        p.k = p.v = p.q;
    } else {
        p.k = encode_map("k", a.k, a.type, a.kv_rows, a.head_dim, a.kv_heads, kv_batches,
                         instance.keys, panels);
        p.v = encode_map("v", a.v, a.type, a.kv_rows, a.head_dim, a.kv_heads, kv_batches,
                         instance.keys, panels);
    }
    for (std::size_t d = 0; d < a.out.size(); ++d) {
        const AttentionDestination& to = a.out[d];
        if (to.rows == 0) continue;  // no box ever falls into it
        p.o[d] = encode_map("out", to.view, a.type, to.rows, a.head_dim, a.heads, a.batches,
                            kGroupRows, panels);
        const int before = p.destinations.row_begin[d] % kGroupRows;
        if (before == 0) continue;
        p.o_head[d] = encode_map("out", to.view, a.type, to.rows, a.head_dim, a.heads, a.batches,
                                 kGroupRows - before, /*box_panels=*/1);
    }
}

}  // namespace

struct AttentionPlan::State {
    std::string name;
    const Instance* instance = nullptr;
    attention::BlockParams params{};  // a kernel without a mask reads the first part
    std::unique_ptr<attention::BlockTable> table;
    unsigned ctas = 0;
    AttentionArguments arguments;  ///< without the mask, which is copied
};

AttentionPlan::AttentionPlan(const AttentionArguments& a) : state_(std::make_unique<State>()) {
    check_arguments(a);
    if (a.mask != nullptr) attention::check_mask(a);
    const int device_sms = hopper_sms();
    const int sms = a.sm_limit > 0 ? std::min(a.sm_limit, device_sms) : device_sms;
    // A mask that leaves nothing out is dense attention: its tall tile is faster, and heads at full
    // density have the bits they would have without a mask.
    const bool masked =
        a.mask != nullptr && !(a.instance.empty() && attention::keeps_everything(a));
    attention::BlockChoice blocks;
    if (masked) blocks = attention::choose_blocks(a, sms);
    const Instance& instance =
        masked ? *blocks.instance : attention::choose(shape_of(a), sms, a.instance);
    state_->instance = &instance;
    state_->name = instance.name;
    state_->arguments = a;
    state_->arguments.mask = nullptr;
    if (a.q_rows == 0 || a.batches == 0) return;

    attention::BlockParams& p = state_->params;
    fill_grid(p, a, instance, sms);
    require(p.grid.size() < std::numeric_limits<std::int32_t>::max() - sms, "too many tiles");
    fill_maps(p, a, instance);
    p.lse = a.lse;
    p.lse_stride_head = a.q_rows;
    p.lse_stride_batch = a.q_rows * a.heads;
    p.key_lengths = a.key_lengths;
    p.q_rows = static_cast<std::int32_t>(a.q_rows);
    p.kv_rows = static_cast<std::int32_t>(a.kv_rows);
    p.heads_per_kv_head = static_cast<std::int32_t>(a.heads / a.kv_heads);
    const double scale = a.scale > 0 ? a.scale : 1.0 / std::sqrt(double(a.head_dim));
    p.rescale_above = a.rescale_above;
    p.scale_log2 = static_cast<float>(scale * 1.4426950408889634);

    state_->ctas = static_cast<unsigned>(std::min<std::int64_t>(sms, p.grid.size()));
    if (masked) {
        state_->table = std::make_unique<attention::BlockTable>(*a.mask, blocks.schedule);
        state_->table->fill(p, a);
        state_->ctas = static_cast<unsigned>(sms);  // the table has a list for each
    }
    check_cuda(cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(instance.shared_bytes)),
               "shared memory of the attention kernel");
}

AttentionPlan::~AttentionPlan() = default;
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;

void AttentionPlan::launch(void* stream) const {
    if (state_->ctas == 0) return;
    const Instance& instance = *state_->instance;
    void* arguments[] = {&state_->params};
    check_cuda(cudaLaunchKernel(instance.kernel, dim3(state_->ctas),
                                dim3(static_cast<unsigned>(instance.threads)), arguments,
                                instance.shared_bytes, static_cast<cudaStream_t>(stream)),
               "attention launch");
}

void AttentionPlan::rebind(const AttentionView& q, const AttentionView& k, const AttentionView& v,
                           const std::vector<AttentionDestination>& out, float* lse) {
    AttentionArguments& a = state_->arguments;
    const auto same_rows = [](const AttentionDestination& x, const AttentionDestination& y) {
        return x.rows == y.rows;
    };
    require(std::equal(out.begin(), out.end(), a.out.begin(), a.out.end(), same_rows),
            "the chunks of out must have the rows that the plan was made for");
    require((k.stride_batch == 0) == (a.k.stride_batch == 0) &&
                (v.stride_batch == 0) == (a.k.stride_batch == 0),
            "K and V must share their batches as they did when the plan was made");
    a.q = q;
    a.k = k;
    a.v = v;
    a.out = out;
    a.lse = lse;
    if (state_->ctas == 0) return;
    fill_maps(state_->params, a, *state_->instance);
    state_->params.lse = lse;
}

const std::string& AttentionPlan::instance() const {
    return state_->name;
}

std::vector<std::string> attention_instances() {
    std::vector<std::string> names;
    for (const Instance& i : attention::all_instances()) {
        if (i.mask != MaskKind::kBlocks) names.emplace_back(i.name);
    }
    return names;
}

std::vector<std::string> block_sparse_instances() {
    std::vector<std::string> names;
    for (const Instance& i : attention::all_instances()) {
        if (i.mask == MaskKind::kBlocks) names.emplace_back(i.name);
    }
    return names;
}

}  // namespace xstage
