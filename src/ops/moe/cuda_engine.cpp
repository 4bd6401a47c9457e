#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "moe/launch.hpp"
#include "ops/moe/impl.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    throw Error(ErrorKind::kEnvironment, fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

/// The ranks of one device, which one launch serves.
struct DeviceRanks {
    int device = 0;
    int blocks = 0;                  ///< CTAs per rank
    std::vector<std::size_t> index;  ///< into the ranks of this process
    kernels::KernelParams params{};
};

class CudaEngine final : public Engine {
  public:
    explicit CudaEngine(const EngineArgs& args) : args_(args) {
        const std::vector<int>& devices = args.fabric.impl().cuda_devices;
        for (std::size_t i = 0; i < devices.size(); ++i) {
            auto found = std::find_if(devices_.begin(), devices_.end(),
                                      [&](const auto& d) { return d.device == devices[i]; });
            if (found == devices_.end()) {
                devices_.push_back({devices[i], 0, {}, {}});
                found = devices_.end() - 1;
            }
            found->index.push_back(i);
        }
        for (std::size_t d = 0; d < devices_.size(); ++d) prepare(devices_[d], static_cast<int>(d));
    }

    void run(std::span<const Input> inputs, const plan::MoeOrder& order, StorePath path,
             const fabric::Streams& streams) override {
        for (const DeviceRanks& ranks : devices_)
            if (ranks.blocks < order.ctas)
                throw Error(ErrorKind::kBadInput,
                            fmt::format("order {} needs {} CTAs per rank, there is {}",
                                        name_of(order), order.ctas, ranks.blocks));
        for (std::size_t d = 0; d < devices_.size(); ++d) {
            DeviceRanks& ranks = devices_[d];
            const auto stream = static_cast<cudaStream_t>(stream_of(streams, d));
            check(cudaSetDevice(ranks.device), "cudaSetDevice");
            ranks.params.order = order;
            ranks.params.store = path;
            ranks.params.blocks = ranks.blocks / order.ctas * order.ctas;
            for (std::size_t i = 0; i < ranks.index.size(); ++i) {
                const Input& in = inputs[ranks.index[i]];
                bring(in, rank_of(ranks, i), stream);
                kernels::RankArgs& to = ranks.params.rank[i];
                to.y = in.y;
                to.tokens = in.tokens;
                to.tokens_at = in.tokens_at;
            }
            check(kernels::launch(variant_of(order.ctas), ranks.params,
                                  static_cast<int>(ranks.index.size()), stream),
                  "launching the MoE kernel");
        }
    }

    int stamp_producers() const override {
        int most = 0;
        for (const DeviceRanks& ranks : devices_)
            most = std::max(most, ranks.blocks * kernels::kStoringWarps);
        return most;
    }

    void set_stamps(std::span<const StampBuffer> buffers) override {
        stamped_ = !buffers.empty();
        for (DeviceRanks& ranks : devices_) {
            for (std::size_t i = 0; i < ranks.index.size(); ++i)
                ranks.params.rank[i].stamps =
                    buffers.empty() ? StampBuffer{} : buffers[ranks.index[i]];
            if (buffers.empty()) continue;
            check(cudaSetDevice(ranks.device), "cudaSetDevice");
            least_resident();
        }
    }

  private:
    kernels::Variant variant_of(std::int32_t ctas) const {
        return {args_.problem.type, stamped_, ctas};
    }
    /// CTAs that the current device holds at a time, whatever the order. Loads the kernels: a call
    /// may be captured.
    int least_resident() const {
        int least = std::numeric_limits<int>::max();
        for (const int ctas : {1, 2}) {
            int resident = 0;
            check(kernels::preload(variant_of(ctas), &resident), "loading the MoE kernel");
            least = std::min(least, resident);
        }
        return least;
    }
    int rank_of(const DeviceRanks& ranks, std::size_t i) const {
        return args_.fabric.local_ranks()[ranks.index[i]];
    }
    std::byte* memory_of(int rank) const {
        return static_cast<std::byte*>(args_.workspace.at(rank));
    }

    void* stream_of(const fabric::Streams& streams, std::size_t device) const {
        const std::span<void* const> all = streams.get();
        if (all.size() == devices_.size()) return all[device];
        if (all.size() == 1 && all[0] == nullptr) return nullptr;
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} streams for {} devices", all.size(), devices_.size()));
    }

    void copy(std::byte* to, const void* from, std::int64_t bytes, cudaStream_t stream) const {
        if (to == from || bytes == 0) return;
        check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream),
              "copying an input");
    }

    void bring(const Input& in, int rank, cudaStream_t stream) const {
        const Problem& p = args_.problem;
        const Layout& at = args_.layout;
        std::byte* const base = memory_of(rank);
        const std::int64_t t = in.tokens;
        copy(base + at.x, in.x, t * p.hidden * p.element_bytes(), stream);
        if (p.type == Type::kFp8)
            copy(base + at.x_scale, in.x_scale, t * (p.hidden / kScaleGroup) * 4, stream);
        copy(base + at.experts, in.experts, t * p.top_k * 4, stream);
        copy(base + at.weights, in.weights, t * p.top_k * 4, stream);
    }

    void prepare(DeviceRanks& ranks, int device_index) const {
        const Problem& p = args_.problem;
        const Layout& at = args_.layout;
        check(cudaSetDevice(ranks.device), "cudaSetDevice");
        int major = 0;
        check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ranks.device),
              "cudaDeviceGetAttribute");
        if (major != 9)
            throw Error(ErrorKind::kUnsupported,
                        fmt::format("the MoE kernels need compute capability 9.0, device {} has {}",
                                    ranks.device, major));
        const int local = static_cast<int>(ranks.index.size());
        const int most = least_resident() / local;
        kernels::KernelParams& params = ranks.params;
        ranks.blocks = args_.options.blocks == 0 ? most : args_.options.blocks;
        // They wait for each other, so all must be resident.
        if (ranks.blocks < 1 || ranks.blocks > most)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("{} CTAs for each of {} ranks on device {}: at most {} fit",
                                    ranks.blocks, local, ranks.device, most));
        params.group = *args_.fabric.device_group(device_index);
        params.call.signature = signature();
        params.at = at;
        params.world = p.ranks;
        params.max_tokens = p.max_tokens;
        params.hidden = p.hidden;
        params.intermediate = p.intermediate;
        params.experts = p.experts;
        params.local_experts = p.local_experts();
        params.held_experts = p.held_experts();
        params.top_k = p.top_k;
        params.slots = p.slots();
        params.clamp = p.clamp > 0 ? p.clamp : std::numeric_limits<float>::infinity();
        for (int r = 0; r < p.ranks; ++r) params.workspace[r] = memory_of(r);
        for (std::size_t i = 0; i < ranks.index.size(); ++i) {
            kernels::RankArgs& to = params.rank[i];
            const Weights& w = args_.weights[ranks.index[i]];
            to.rank = rank_of(ranks, i);
            std::byte* const base = memory_of(to.rank);
            // Counters start at zero, and rows that nobody writes hold no NaN from before.
            check(cudaMemset(base, 0, static_cast<std::size_t>(at.bytes)), "cudaMemset");
            const std::int64_t pool = std::int64_t{at.ring_blocks} * kTileRows;
            to.x = kernels::encode_map("the pool", base + at.pool_x, p.type, pool, p.hidden, 64);
            to.act = kernels::encode_map("the activations", base + at.act, p.type, pool,
                                         p.intermediate, 64);
            to.w1 = kernels::encode_map("w1", w.w1, p.type,
                                        std::int64_t{p.held_experts()} * 2 * p.intermediate,
                                        p.hidden, 128);
            to.w2 = kernels::encode_map(
                "w2", w.w2, p.type, std::int64_t{p.held_experts()} * p.hidden, p.intermediate, 128);
            to.s1 = w.s1;
            to.s2 = w.s2;
        }
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    /// By which ranks that call different layers find out.
    std::uint64_t signature() const {
        using fabric::protocol::mix;
        const Problem& p = args_.problem;
        std::uint64_t hash = 0x30e;
        for (const int value : {p.max_tokens, p.hidden, p.intermediate, p.experts, p.top_k,
                                static_cast<int>(p.type), static_cast<int>(p.shared)})
            hash = mix(hash, static_cast<std::uint64_t>(value));
        return hash;
    }

    EngineArgs args_;
    bool stamped_ = false;
    std::vector<DeviceRanks> devices_;
};

}  // namespace

std::unique_ptr<Engine> make_cuda_engine(const EngineArgs& args) {
    return std::make_unique<CudaEngine>(args);
}

}  // namespace xstage::moe
