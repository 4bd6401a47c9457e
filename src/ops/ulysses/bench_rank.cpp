#include "ops/ulysses/bench_rank.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "ops/ulysses/mover.hpp"
#include "ops/ulysses/nccl.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"

namespace xstage::ulysses {
namespace {

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

/// Device memory filled with normal bf16 values (a tile of them, repeated).
class Buffer {
  public:
    Buffer(std::size_t bytes, unsigned seed, cudaStream_t stream) {
        check(cudaMalloc(&data_, bytes), "cudaMalloc");
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        std::vector<std::uint16_t> tile(1 << 20);
        for (auto& x : tile) x = Bf16::from(normal(random)).bits;
        for (std::size_t at = 0; at < bytes; at += tile.size() * 2)
            check(cudaMemcpyAsync(static_cast<std::byte*>(data_) + at, tile.data(),
                                  std::min(bytes - at, tile.size() * 2), cudaMemcpyHostToDevice,
                                  stream),
                  "filling a buffer");
        check(cudaStreamSynchronize(stream), "filling a buffer");
    }
    ~Buffer() { cudaFree(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void* get() const { return data_; }

  private:
    void* data_ = nullptr;
};

class Graph {
  public:
    Graph(cudaStream_t stream, const std::function<void()>& work) {
        cudaGraph_t graph = nullptr;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        try {
            work();
        } catch (...) {
            cudaStreamEndCapture(stream, &graph);
            throw;
        }
        check(cudaStreamEndCapture(stream, &graph), "capture");
        check(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
        cudaGraphDestroy(graph);
    }
    ~Graph() {
        if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch(cudaStream_t stream) const {
        check(cudaGraphLaunch(exec_, stream), "launching a graph");
    }

  private:
    cudaGraphExec_t exec_ = nullptr;
};

struct Variant {
    std::string name;
    std::function<void()> send;     ///< until the sender may go on
    std::function<void()> receive;  ///< the rest; may be empty
    std::function<View(int)> out;   ///< a local rank's rows afterwards; empty when there are none
    std::unique_ptr<Graph> graphs[2];
    Times times;
};

class RankBench {
  public:
    RankBench(const BenchOptions& options, int rank, const std::string& name)
        : options_(options), rank_(rank) {
        fabric::FabricOptions fo;
        fo.backend = options.backend;
        fo.world = options.world;
        fo.rank = rank;
        fo.name = name;
        fo.wait_timeout = std::chrono::seconds(10);
        if (options.backend == fabric::Backend::kLocal)
            fo.devices.assign(static_cast<std::size_t>(options.world), 0);
        group_ = std::make_unique<fabric::Fabric>(fo);
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
        for (cudaEvent_t& e : event_) check(cudaEventCreate(&e), "event");
        check(cudaMalloc(&flush_, kFlushBytes), "cudaMalloc");
        plug_ = cudnn_plug();
        mover_ = make_cuda_mover(*group_);
        if (options.nccl && options.backend == fabric::Backend::kProcess && options.world > 1) {
            try {
                nccl_ = std::make_unique<Nccl>(rank, options.world, "/tmp/" + name + ".nccl",
                                               [&] { group_->agree("nccl id"); });
            } catch (const Error& e) {
                nccl_missing_ = e.what();
            }
        }
    }
    ~RankBench() {
        cudaStreamSynchronize(stream_);
        nccl_.reset();
        cudaFree(flush_);
    }

    ShapeTimes shape(const BenchShape& s);

  private:
    static constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

    void add(Variant v) { variants_.push_back(std::move(v)); }
    void add_ulysses(const std::string& name, const Problem& problem, const Options& options,
                     ShapeTimes& result);
    void add_attend(const std::string& name, const Problem& problem, const Options& options,
                    ShapeTimes& result);
    void add_nccl(const Problem& problem);
    void once(Variant& v, bool timed);
    std::vector<std::byte> rows_of(const Variant& v, int local, std::int64_t rows,
                                   std::size_t row_bytes) const;

    const BenchOptions& options_;
    int rank_;
    std::unique_ptr<fabric::Fabric> group_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t event_[3] = {};
    void* flush_ = nullptr;
    Plug plug_;
    std::unique_ptr<Mover> mover_;
    std::unique_ptr<Nccl> nccl_;
    std::string nccl_missing_;
    std::vector<Variant> variants_;
    std::vector<std::unique_ptr<UlyssesAttention>> attentions_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<GatheredInput> gathered_;
    Heads heads_;
};

/// One repetition: caches flushed, all ranks at the line, then the work between events.
void RankBench::once(Variant& v, bool timed) {
    // The flush also keeps the GPU busy while the host enqueues the rest, so no launch is timed.
    check(cudaMemsetAsync(flush_, 0, kFlushBytes, stream_), "flush");
    group_->barrier(stream_);
    check(cudaEventRecord(event_[0], stream_), "event");
    v.graphs[0]->launch(stream_);
    check(cudaEventRecord(event_[1], stream_), "event");
    if (v.graphs[1]) v.graphs[1]->launch(stream_);
    check(cudaEventRecord(event_[2], stream_), "event");
    group_->synchronize(stream_);
    if (!timed) return;
    float sender = 0, receiver = 0;
    check(cudaEventElapsedTime(&sender, event_[0], event_[1]), "event");
    check(cudaEventElapsedTime(&receiver, event_[0], event_[2]), "event");
    v.times.sender.push_back(sender * 1000.0);
    v.times.receiver.push_back(receiver * 1000.0);
}

void RankBench::add_ulysses(const std::string& name, const Problem& problem, const Options& options,
                            ShapeTimes& result) {
    try {
        attentions_.push_back(std::make_unique<UlyssesAttention>(*group_, problem, options));
    } catch (const Error& e) {
        if (e.kind() != ErrorKind::kBadInput) throw;
        result.missing[name] = e.what();
        return;
    }
    UlyssesAttention* a = attentions_.back().get();
    result.plans[name] = describe(a->plan());
    std::vector<GatheredInput> inputs = gathered_;
    const fabric::Streams streams(stream_);
    if (options.attend) {
        // Q where the plan wants it: brought there once by an ordinary call, then used in place.
        a->attend_and_scatter(inputs, streams);
        for (std::size_t i = 0; i < inputs.size(); ++i)
            inputs[i].q = a->query_memory(group_->local_ranks()[i]);
    }
    add({name,
         [a, inputs, streams] {
             a->use_buffer(0);
             a->set_deferred(true);
             a->attend_and_scatter(inputs, streams);
         },
         [a, streams] {
             a->finish(streams);
             a->set_deferred(false);
         },
         [this, a](int local) {
             return a->out_memory(0, group_->local_ranks()[static_cast<std::size_t>(local)]);
         },
         {},
         {}});
}

void RankBench::add_attend(const std::string& name, const Problem& p, const Options& options,
                           ShapeTimes& result) {
    attentions_.push_back(std::make_unique<UlyssesAttention>(*group_, p, options));
    UlyssesAttention* a = attentions_.back().get();
    result.plans[name] = describe(a->plan());
    std::vector<ShardedInput> inputs;
    for (int r : group_->local_ranks()) {
        const std::int64_t rows = p.rows_q[static_cast<std::size_t>(r)];
        const std::int64_t width = std::int64_t{p.heads_q} * p.head_dim;
        buffers_.push_back(std::make_unique<Buffer>(static_cast<std::size_t>(rows * width * 3) * 2,
                                                    50 + r, stream_));
        // Views into one fused projection.
        ShardedInput in;
        View view{buffers_.back()->get(), rows * 3 * width, 3 * width, p.head_dim};
        for (Projection* projection : {&in.q, &in.k, &in.v}) {
            projection->image = view;
            view.data = static_cast<std::byte*>(view.data) + width * 2;
        }
        inputs.push_back(in);
    }
    const fabric::Streams streams(stream_);
    add({name,
         [a, inputs, streams] {
             a->use_buffer(0);
             a->attend(inputs, streams);
         },
         {},
         {},
         {},
         {}});
}

/// Attention, NCCL's exchange of [rows of p, own heads] pieces, and a kernel that brings heads
/// beside each other.
void RankBench::add_nccl(const Problem& p) {
    const int world = p.world();
    const auto me = static_cast<std::size_t>(rank_);
    const std::int64_t rows = p.image_q();
    const std::int64_t width = std::int64_t{heads_.q[me].count()} * p.head_dim;
    buffers_.push_back(
        std::make_unique<Buffer>(static_cast<std::size_t>(rows * width) * 2, 1, stream_));
    auto* packed_out = static_cast<std::byte*>(buffers_.back()->get());
    const std::size_t final_bytes = static_cast<std::size_t>(p.rows_q[me] * p.pitch()) * 2;
    buffers_.push_back(std::make_unique<Buffer>(final_bytes, 1, stream_));
    auto* staging = static_cast<std::byte*>(buffers_.back()->get());
    buffers_.push_back(std::make_unique<Buffer>(final_bytes, 1, stream_));
    auto* out = static_cast<std::byte*>(buffers_.back()->get());
    std::vector<Nccl::Piece> pieces;
    std::vector<RowScatter> relayouts;
    std::size_t sent = 0, received = 0;
    for (int r = 0; r < world; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const std::size_t to = static_cast<std::size_t>(p.rows_q[i] * width) * 2;
        const std::size_t their_row =
            static_cast<std::size_t>(heads_.q[i].count()) * p.head_dim * 2;
        const std::size_t from = static_cast<std::size_t>(p.rows_q[me]) * their_row;
        pieces.push_back({packed_out + sent, to, staging + received, from});
        RowScatter s;
        s.world = 1;
        s.from = staging + received;
        s.from_row = static_cast<std::int64_t>(their_row);
        s.to[0] = out + static_cast<std::size_t>(heads_.q[i].begin) * p.head_dim * 2;
        s.to_row = p.pitch() * 2;
        s.rows[0] = p.rows_q[me];
        s.bytes = static_cast<int>(their_row);
        relayouts.push_back(s);
        sent += to;
        received += from;
    }
    AttentionCall call;
    call.rank = rank_;
    call.rows_q = rows;
    call.rows_kv = rows;
    call.heads_q = call.heads_kv = heads_.q[me].count();
    call.head_dim = p.head_dim;
    call.scale = 1.0f / std::sqrt(static_cast<float>(p.head_dim));
    call.q = gathered_[0].q;
    call.k = gathered_[0].k;
    call.v = gathered_[0].v;
    call.out = packed(packed_out, rows, call.heads_q, p.head_dim);
    call.stream = stream_;
    View view{out, 0, p.pitch(), p.head_dim};
    add({"serial nccl",
         [this, call, pieces, relayouts] {
             plug_.run(call);
             nccl_->all_to_all(pieces, stream_);
             for (const RowScatter& s : relayouts) mover_->move(s, 0, stream_);
         },
         {},
         [view](int) { return view; },
         {},
         {}});
}

std::vector<std::byte> RankBench::rows_of(const Variant& v, int local, std::int64_t rows,
                                          std::size_t row_bytes) const {
    const View view = v.out(local);
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes);
    check(cudaMemcpy2D(bytes.data(), row_bytes, view.data,
                       static_cast<std::size_t>(view.row_stride) * 2, row_bytes,
                       static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost),
          "reading a result");
    return bytes;
}

ShapeTimes RankBench::shape(const BenchShape& s) {
    ShapeTimes result;
    Problem p;
    p.heads_q = s.heads;
    p.head_dim = s.dim;
    p.rows_q = split_rows(s.rows, options_.world);
    heads_ = split_heads(s.heads, s.heads, options_.world);
    gathered_.clear();
    for (int r : group_->local_ranks()) {
        const int h = heads_.q[static_cast<std::size_t>(r)].count();
        GatheredInput in;
        for (View* v : {&in.q, &in.k, &in.v}) {
            buffers_.push_back(
                std::make_unique<Buffer>(static_cast<std::size_t>(s.rows * h * s.dim) * 2,
                                         static_cast<unsigned>(buffers_.size() + 10 * r), stream_));
            *v = packed(buffers_.back()->get(), s.rows, h, s.dim);
        }
        gathered_.push_back(in);
    }
    std::vector<AttentionCall> alone;
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
        const int r = group_->local_ranks()[i];
        AttentionCall call;
        call.rank = r;
        call.rows_q = call.rows_kv = s.rows;
        call.heads_q = call.heads_kv = heads_.q[static_cast<std::size_t>(r)].count();
        call.head_dim = s.dim;
        call.scale = 1.0f / std::sqrt(static_cast<float>(s.dim));
        call.q = gathered_[i].q;
        call.k = gathered_[i].k;
        call.v = gathered_[i].v;
        buffers_.push_back(std::make_unique<Buffer>(
            static_cast<std::size_t>(s.rows * call.heads_q * s.dim) * 2, 1, stream_));
        call.out = packed(buffers_.back()->get(), s.rows, call.heads_q, s.dim);
        call.stream = stream_;
        alone.push_back(call);
    }
    add({"attention alone",
         [this, alone] {
             for (const AttentionCall& c : alone) plug_.run(c);
         },
         {},
         {},
         {},
         {}});

    Options o;
    o.plug = plug_;
    o.buffers = 1;
    o.attend = false;
    Options sent = o;
    sent.plug.stores_to_out = false;
    add_ulysses("serial packed", p, sent, result);
    for (Layout layout : {Layout::kBatched, Layout::kSplit}) {
        o.plan.layout = layout;
        add_ulysses(std::string("stitched ") + name_of(layout), p, o, result);
    }
    o.attend = true;
    for (Layout layout : {Layout::kPadded, Layout::kPages}) {
        o.plan.layout = layout;
        add_ulysses(std::string("stitched ") + name_of(layout), p, o, result);
    }
    o.plan.layout = Layout::kAuto;
    add_attend("attend", p, o, result);
    Options exchange = o;
    exchange.plug.run = [](const AttentionCall&) {};
    add_attend("first all-to-all", p, exchange, result);
    exchange.order = SendOrder::kPeerByPeer;
    add_attend("first all-to-all, naive order", p, exchange, result);
    if (nccl_) {
        add_nccl(p);
    } else {
        result.missing["serial nccl"] =
            nccl_missing_.empty() ? "one rank per process is needed" : nccl_missing_;
    }

    for (Variant& v : variants_) {
        // Eagerly first: a kernel library builds its plans there, which a capture forbids.
        v.send();
        if (v.receive) v.receive();
        group_->synchronize(stream_);
        v.graphs[0] = std::make_unique<Graph>(stream_, v.send);
        if (v.receive) v.graphs[1] = std::make_unique<Graph>(stream_, v.receive);
    }
    std::mt19937 random(options_.seed);  // the same order on every rank
    std::vector<std::size_t> order(variants_.size());
    std::iota(order.begin(), order.end(), 0);
    // Long shapes repeat less: the whole stays within minutes.
    const double flops =
        4.0 * static_cast<double>(s.rows) * static_cast<double>(s.rows) * s.heads * s.dim;
    const int repetitions =
        std::max(5, std::min(options_.repetitions, static_cast<int>(3e15 / flops)));
    for (int i = -3; i < repetitions; ++i) {
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t v : order) once(variants_[v], i >= 0);
    }
    const auto reference = std::find_if(variants_.begin(), variants_.end(),
                                        [](const Variant& v) { return v.name == "serial packed"; });
    const std::size_t row_bytes = static_cast<std::size_t>(s.heads) * s.dim * 2;
    if (s.rows <= 40000 && reference != variants_.end())
        for (std::size_t i = 0; i < gathered_.size(); ++i) {
            const int local = static_cast<int>(i);
            const std::int64_t rows = p.rows_q[static_cast<std::size_t>(group_->local_ranks()[i])];
            const std::vector<std::byte> want = rows_of(*reference, local, rows, row_bytes);
            for (const Variant& v : variants_) {
                if (!v.out) continue;
                const std::vector<std::byte> got = rows_of(v, local, rows, row_bytes);
                double count = 0;
                for (std::size_t b = 0; b < got.size(); b += 2)
                    count += std::memcmp(&got[b], &want[b], 2) != 0 ? 1 : 0;
                result.differing[v.name] += count;
            }
        }
    for (Variant& v : variants_) result.variants[v.name] = v.times;
    group_->synchronize(stream_);
    group_->agree("shape done");
    variants_.clear();
    attentions_.clear();
    buffers_.clear();
    return result;
}

}  // namespace

std::vector<ShapeTimes> bench_rank(const BenchOptions& options, int rank,
                                   const std::string& group) {
    RankBench bench(options, rank, group);
    std::vector<ShapeTimes> all;
    for (const BenchShape& s : options.shapes) {
        if (s.heads < options.world) continue;
        fmt::print(stderr, "xstage bench ulysses: {} rows, {} heads of {}\n", s.rows, s.heads,
                   s.dim);
        all.push_back(bench.shape(s));
    }
    return all;
}

}  // namespace xstage::ulysses
