#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define NV_CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <tuple>

#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks its functions up here
}

namespace xstage::ulysses {
namespace {

namespace fe = cudnn_frontend;

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kRowsQ, kRowsKv };

void check(fe::error_t status, const char* what) {
    if (status.is_bad())
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("cuDNN, {}: {}", what, status.get_message()));
}

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

class DeviceMemory {
  public:
    explicit DeviceMemory(std::size_t bytes) {
        if (bytes > 0) check(cudaMalloc(&data_, bytes), "cudaMalloc for cuDNN");
    }
    ~DeviceMemory() { cudaFree(data_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    void* get() const { return data_; }

  private:
    void* data_ = nullptr;
};

/// A built graph of one shape on one device.
struct Built {
    fe::graph::Graph graph;
    std::unique_ptr<DeviceMemory> workspace;
    std::unique_ptr<DeviceMemory> rows_q;
    bool usable = false;
};

using Key = std::vector<std::int64_t>;

Key key_of(const AttentionCall& c, int device) {
    Key key = {device,
               c.batch,
               c.rows_q,
               c.rows_kv,
               c.heads_q,
               c.heads_kv,
               c.head_dim,
               static_cast<std::int64_t>(c.dtype),
               c.lse.data != nullptr,
               c.kv_lengths != nullptr,
               c.lse.batch_stride,
               c.lse.head_stride};
    for (const View* v : {&c.q, &c.k, &c.v, &c.out})
        key.insert(key.end(), {v->batch_stride, v->row_stride, v->head_stride});
    std::int32_t scale;
    std::memcpy(&scale, &c.scale, sizeof scale);
    key.push_back(scale);
    return key;
}

class Cudnn {
  public:
    void run(const AttentionCall& call) {
        if (call.rows_q == 0) return;
        int device = 0;
        check(cudaGetDevice(&device), "cudaGetDevice");
        // Lengths that all batch indices share have no stride that cuDNN takes.
        const bool split =
            call.kv_lengths != nullptr && call.batch > 1 && call.kv_lengths_stride == 0;
        if (!split) {
            Built& built = build(call, device);
            if (built.usable) {
                execute(built, call, device);
                return;
            }
        }
        one_by_one(call, device);
    }

  private:
    cudnnHandle_t handle(int device) {
        cudnnHandle_t& handle = handles_[device];
        if (handle == nullptr && fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
            throw Error(ErrorKind::kEnvironment, "cudnnCreate failed");
        return handle;
    }

    void one_by_one(AttentionCall call, int device) {
        const int batch = call.batch;
        const std::size_t e = fabric::bytes_of(call.dtype);
        call.batch = 1;
        for (int b = 0; b < batch; ++b) {
            Built& built = build(call, device);
            if (!built.usable)
                throw Error(ErrorKind::kUnsupported,
                            fmt::format("cuDNN has no attention for {} x {} rows, {} heads of {}",
                                        call.rows_q, call.rows_kv, call.heads_q, call.head_dim));
            execute(built, call, device);
            for (View* v : {&call.q, &call.k, &call.v, &call.out})
                v->data = static_cast<std::byte*>(v->data) +
                          v->batch_stride * static_cast<std::int64_t>(e);
            if (call.lse.data != nullptr) call.lse.data += call.lse.batch_stride;
            if (call.kv_lengths != nullptr) call.kv_lengths += call.kv_lengths_stride;
        }
    }

    Built& build(const AttentionCall& c, int device) {
        std::unique_ptr<Built>& built = built_[key_of(c, device)];
        if (built) return *built;
        built = std::make_unique<Built>();
        fe::graph::Graph& g = built->graph;
        g.set_io_data_type(c.dtype == fabric::DType::kF16 ? fe::DataType_t::HALF
                                                          : fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        const auto tensor = [&](const char* name, Uid uid, std::int64_t rows, int heads,
                                const View& v) {
            // A batch index of one has no stride; cuDNN still wants one that is not 0.
            const std::int64_t batch = c.batch == 1 ? rows * v.row_stride : v.batch_stride;
            return g.tensor(fe::graph::Tensor_attributes()
                                .set_name(name)
                                .set_uid(uid)
                                .set_dim({c.batch, heads, rows, c.head_dim})
                                .set_stride({batch, v.head_stride, v.row_stride, 1}));
        };
        auto q = tensor("q", kQ, c.rows_q, c.heads_q, c.q);
        auto k = tensor("k", kK, c.rows_kv, c.heads_kv, c.k);
        auto v = tensor("v", kV, c.rows_kv, c.heads_kv, c.v);
        auto options = fe::graph::SDPA_attributes()
                           .set_name("attention")
                           .set_generate_stats(c.lse.data != nullptr)
                           .set_attn_scale(c.scale);
        if (c.kv_lengths != nullptr) {
            const auto lengths = [&](const char* name, Uid uid) {
                return g.tensor(fe::graph::Tensor_attributes()
                                    .set_name(name)
                                    .set_uid(uid)
                                    .set_dim({c.batch, 1, 1, 1})
                                    .set_stride({1, 1, 1, 1})
                                    .set_data_type(fe::DataType_t::INT32));
            };
            options.set_padding_mask(true)
                .set_seq_len_q(lengths("rows_q", kRowsQ))
                .set_seq_len_kv(lengths("rows_kv", kRowsKv));
            const std::vector<std::int32_t> rows(static_cast<std::size_t>(c.batch),
                                                 static_cast<std::int32_t>(c.rows_q));
            built->rows_q = std::make_unique<DeviceMemory>(rows.size() * sizeof(std::int32_t));
            check(cudaMemcpy(built->rows_q->get(), rows.data(), rows.size() * sizeof(std::int32_t),
                             cudaMemcpyHostToDevice),
                  "cudaMemcpy for cuDNN");
        }
        auto [out, stats] = g.sdpa(q, k, v, options);
        const std::int64_t out_batch =
            c.batch == 1 ? c.rows_q * c.out.row_stride : c.out.batch_stride;
        out->set_output(true)
            .set_uid(kOut)
            .set_dim({c.batch, c.heads_q, c.rows_q, c.head_dim})
            .set_stride({out_batch, c.out.head_stride, c.out.row_stride, 1});
        if (c.lse.data != nullptr)
            stats->set_output(true)
                .set_uid(kStats)
                .set_data_type(fe::DataType_t::FLOAT)
                .set_dim({c.batch, c.heads_q, c.rows_q, 1})
                .set_stride({c.batch == 1 ? c.heads_q * c.lse.head_stride : c.lse.batch_stride,
                             c.lse.head_stride, 1, 1});
        const fe::error_t status = g.build(handle(device), {fe::HeurMode_t::A});
        if (status.is_bad()) {
            // Sharing keys by a batch stride of 0 may be refused; one batch index at a time is not.
            if (c.batch == 1) check(status, "building the graph");
            return *built;
        }
        std::int64_t bytes = 0;
        check(g.get_workspace_size(bytes), "workspace");
        built->workspace = std::make_unique<DeviceMemory>(static_cast<std::size_t>(bytes));
        built->usable = true;
        return *built;
    }

    void execute(Built& built, const AttentionCall& c, int device) {
        cudnnHandle_t h = handle(device);
        if (fe::detail::set_stream(h, static_cast<cudaStream_t>(c.stream)) != CUDNN_STATUS_SUCCESS)
            throw Error(ErrorKind::kEnvironment, "cudnnSetStream failed");
        std::unordered_map<std::int64_t, void*> pack = {
            {kQ, c.q.data}, {kK, c.k.data}, {kV, c.v.data}, {kOut, c.out.data}};
        if (c.lse.data != nullptr) pack[kStats] = c.lse.data;
        if (c.kv_lengths != nullptr) {
            pack[kRowsQ] = built.rows_q->get();
            pack[kRowsKv] = const_cast<std::int32_t*>(c.kv_lengths);
        }
        check(built.graph.execute(h, pack, built.workspace->get()), "attention");
    }

    std::map<int, cudnnHandle_t> handles_;  // for the life of the process, as cuDNN advises
    std::map<Key, std::unique_ptr<Built>> built_;
};

/// Opens the library once; why it could not be opened, or empty.
const std::string& open_library() {
    static const std::string reason = [] {
        for (const char* name : {"libcudnn.so.9", "libcudnn.so"}) {
            fe::cudnn_dlhandle = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
            if (fe::cudnn_dlhandle != nullptr) return std::string();
        }
        const char* error = ::dlerror();
        return fmt::format(
            "cuDNN 9 cannot be opened ({}): install it or add its folder to LD_LIBRARY_PATH",
            error == nullptr ? "no reason given" : error);
    }();
    return reason;
}

}  // namespace

std::string cudnn_missing() {
    return open_library();
}

Plug cudnn_plug() {
    if (!open_library().empty()) throw Error(ErrorKind::kUnsupported, open_library());
    auto cudnn = std::make_shared<Cudnn>();
    return {[cudnn](const AttentionCall& call) { cudnn->run(call); }, "cudnn", true, 128};
}

}  // namespace xstage::ulysses
