#include "xstage/ulysses/xstage_plug.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "ops/ulysses/kernel_arguments.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {

AttentionView kernel_view(const View& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}

AttentionArguments kernel_arguments(const AttentionCall& c) {
    if (c.dtype != fabric::DType::kBf16 && c.dtype != fabric::DType::kF16)
        throw Error(ErrorKind::kUnsupported, "xstage's attention kernel takes bf16 and fp16");
    if (c.lse.data != nullptr &&
        (c.lse.head_stride != c.rows_q || c.lse.batch_stride != c.heads_q * c.rows_q))
        throw Error(ErrorKind::kUnsupported, "xstage's attention kernel writes a packed LSE");
    AttentionArguments a;
    a.type = c.dtype == fabric::DType::kBf16 ? AttentionType::kBf16 : AttentionType::kFp16;
    a.batches = c.batch;
    a.heads = c.heads_q;
    a.kv_heads = c.heads_kv;
    a.q_rows = c.rows_q;
    a.kv_rows = c.rows_kv;
    a.head_dim = c.head_dim;
    a.q = kernel_view(c.q);
    a.k = kernel_view(c.k);
    a.v = kernel_view(c.v);
    if (c.peers == 0) {
        a.out.push_back({kernel_view(c.out), c.rows_q});
    } else {
        for (int r = 0; r < c.peers; ++r)
            a.out.push_back({kernel_view(c.peer_out[r]), c.peer_rows[r]});
        a.rank = c.rank;
        // A mask brings its own order, by the work of its rows.
        if (c.mask == nullptr) a.order = plan::TileOrder::kRotated;
    }
    a.lse = c.lse.data;
    a.key_lengths = c.kv_lengths;
    a.scale = c.scale;
    a.mask = c.mask;
    return a;
}

namespace {

void append(std::vector<std::int64_t>& key, const View& v) {
    key.insert(key.end(), {static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(v.data)),
                           v.batch_stride, v.row_stride, v.head_stride});
}

class Own {
  public:
    explicit Own(const std::string& instance) : instance_(instance) {}

    void run(AttentionCall call) {
        if (call.rows_q == 0) return;
        // A length that all batch indices share has no stride in the kernel.
        const bool split =
            call.kv_lengths != nullptr && call.batch > 1 && call.kv_lengths_stride == 0;
        const int batch = split ? call.batch : 1;
        const auto element = static_cast<std::int64_t>(fabric::bytes_of(call.dtype));
        if (split) call.batch = 1;
        for (int b = 0; b < batch; ++b) {
            plan_for(call).launch(call.stream);
            for (View* v : {&call.q, &call.k, &call.v, &call.out})
                v->data = static_cast<std::byte*>(v->data) + v->batch_stride * element;
            if (call.lse.data != nullptr) call.lse.data += call.lse.batch_stride;
        }
    }

  private:
    AttentionArguments arguments_of(const AttentionCall& c) const {
        AttentionArguments a = kernel_arguments(c);
        a.instance = instance_;
        return a;
    }

    /// Tensor maps hold addresses, so a plan serves one set of them; calls turn over few buffers.
    /// With a mask there is one plan for all, bound again: its bits and tiles lie in device memory.
    const AttentionPlan& plan_for(const AttentionCall& c) {
        constexpr std::size_t kMostPlans = 256;
        int device = 0;
        if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
            throw Error(ErrorKind::kEnvironment,
                        fmt::format("cudaGetDevice: {}", cudaGetErrorString(error)));
        std::vector<std::int64_t> key = {
            device,
            c.rank,
            c.batch,
            c.rows_q,
            c.rows_kv,
            c.heads_q,
            c.heads_kv,
            c.head_dim,
            static_cast<std::int64_t>(c.dtype),
            c.peers,
            static_cast<std::int64_t>(c.mask_id),
            c.mask != nullptr
                ? std::int64_t{c.lse.data != nullptr}
                : static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(c.lse.data)),
            static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(c.kv_lengths))};
        std::int32_t scale = 0;
        std::memcpy(&scale, &c.scale, sizeof scale);
        key.push_back(scale);
        if (c.mask == nullptr)
            for (const View* v : {&c.q, &c.k, &c.v, &c.out}) append(key, *v);
        for (int r = 0; r < c.peers; ++r) {
            if (c.mask == nullptr) append(key, c.peer_out[r]);
            key.push_back(c.peer_rows[r]);
        }
        if (plans_.size() >= kMostPlans) plans_.clear();
        auto found = plans_.find(key);
        if (found == plans_.end()) {
            found = plans_.emplace(std::move(key), AttentionPlan(arguments_of(c))).first;
        } else if (c.mask != nullptr) {
            const AttentionArguments a = arguments_of(c);
            found->second.rebind(a.q, a.k, a.v, a.out, a.lse);
        }
        return found->second;
    }

    std::string instance_;
    std::map<std::vector<std::int64_t>, AttentionPlan> plans_;
};

}  // namespace

std::string xstage_plug_missing() {
    return {};
}

Plug xstage_plug(const std::string& instance) {
    auto own = std::make_shared<Own>(instance);
    return {[own](const AttentionCall& call) { own->run(call); }, "xstage", true, 128, true, true};
}

}  // namespace xstage::ulysses
