#include "ops/ulysses/bench_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "ops/bench_processes.hpp"
#include "ops/ulysses/bench_run.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"
#include "xstage/ulysses/xstage_plug.hpp"

namespace xstage::ulysses {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

/// Q as the plan's blocks expect it.
void fill_query(const Plan& plan, const View& from, const View& to, cudaStream_t stream) {
    const std::size_t row_bytes = static_cast<std::size_t>(from.row_stride) * 2;
    std::int64_t first = 0;
    for (int r = 0; r < plan.problem.world(); ++r) {
        const std::int64_t rows = plan.problem.rows_q[static_cast<std::size_t>(r)];
        const std::int64_t run = plan.q_map.unit_rows > 0 ? plan.q_map.unit_rows : rows;
        for (std::int64_t row = 0; row < rows; row += run)
            check_cuda(cudaMemcpyAsync(
                           static_cast<std::byte*>(to.data) +
                               static_cast<std::size_t>(axis_row(plan.q_map, r, row)) * row_bytes,
                           static_cast<const std::byte*>(from.data) +
                               static_cast<std::size_t>(first + row) * row_bytes,
                           static_cast<std::size_t>(std::min(run, rows - row)) * row_bytes,
                           cudaMemcpyDeviceToDevice, stream),
                       "filling Q");
        first += rows;
    }
}

/// A call whose last signals, what a receiver waits for, are left to receiver_part.
std::function<void()> sender_part(UlyssesAttention* a, std::vector<GatheredInput> inputs,
                                  fabric::Streams streams) {
    return [a, inputs = std::move(inputs), streams] {
        a->use_buffer(0);
        a->set_deferred(true);
        a->attend_and_scatter(inputs, streams);
    };
}

std::function<void()> receiver_part(UlyssesAttention* a, fabric::Streams streams) {
    return [a, streams] {
        a->finish(streams);
        a->set_deferred(false);
    };
}

}  // namespace

RankBench::RankBench(const BenchOptions& options, int rank, const std::string& name)
    : options_(options), rank_(rank) {
    group_ = std::make_unique<fabric::Fabric>(
        bench::group_options(options.backend, options.world, rank, name));
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& e : event_) check_cuda(cudaEventCreate(&e), "event");
    check_cuda(cudaMalloc(&flush_, kFlushBytes), "cudaMalloc");
    plug_ = options.attention == "xstage" ? xstage_plug() : cudnn_plug();
    mover_ = make_cuda_mover(*group_);
    if (!options.nccl || options.backend != fabric::Backend::kProcess || options.world == 1) return;
    try {
        nccl_ = std::make_unique<Nccl>(rank, options.world, "/tmp/" + name + ".nccl",
                                       [&] { group_->agree("nccl id"); });
    } catch (const Error& e) {
        nccl_missing_ = e.what();
    }
}
RankBench::~RankBench() {
    cudaStreamSynchronize(stream_);
    nccl_.reset();
    cudaFree(flush_);
}

void RankBench::add(const std::string& name, std::function<void()> send,
                    std::function<void()> receive, std::function<View(int)> out) {
    variants_.push_back({name, std::move(send), std::move(receive), std::move(out), {}, {}});
}

Options RankBench::options_for(Layout layout, bool attend) const {
    Options o;
    o.plug = plug_;
    o.buffers = 1;
    o.attend = attend;
    o.plan.layout = layout;
    return o;
}

Buffer& RankBench::buffer(std::size_t bytes, unsigned seed) {
    return *buffers_.emplace_back(std::make_unique<Buffer>(bytes, seed, stream_));
}

UlyssesAttention& RankBench::attention(const Problem& problem, const Options& options) {
    return *attentions_.emplace_back(std::make_unique<UlyssesAttention>(*group_, problem, options));
}

/// Caches flushed, all ranks at the line, then the work between events.
void RankBench::once(Variant& v, bool timed) {
    // The flush also keeps the GPU busy while the host enqueues the rest, so no launch is timed.
    check_cuda(cudaMemsetAsync(flush_, 0, kFlushBytes, stream_), "flush");
    group_->barrier(stream_);
    check_cuda(cudaEventRecord(event_[0], stream_), "event");
    v.graphs[0]->launch(stream_);
    check_cuda(cudaEventRecord(event_[1], stream_), "event");
    if (v.graphs[1]) v.graphs[1]->launch(stream_);
    check_cuda(cudaEventRecord(event_[2], stream_), "event");
    group_->synchronize(stream_);
    if (!timed) return;
    float sender = 0, receiver = 0;
    check_cuda(cudaEventElapsedTime(&sender, event_[0], event_[1]), "event");
    check_cuda(cudaEventElapsedTime(&receiver, event_[0], event_[2]), "event");
    v.times.sender.push_back(sender * 1000.0);
    v.times.receiver.push_back(receiver * 1000.0);
}

/// The whole call up to the signal, and its kernel calls by themselves: the second against
/// attention alone is what the place of the output costs.
void RankBench::add_stitched(Layout layout, const Problem& problem, bool own_q,
                             ShapeTimes& result) {
    const std::string name =
        layout == Layout::kScatter ? "serial packed" : std::string("stitched ") + name_of(layout);
    Options options = options_for(layout, own_q);
    auto calls = std::make_shared<std::vector<AttentionCall>>();
    auto recording = std::make_shared<bool>(false);
    options.plug.run = [run = plug_.run, calls, recording](const AttentionCall& call) {
        if (*recording) calls->push_back(call);
        run(call);
    };
    UlyssesAttention* a = nullptr;
    try {
        a = &attention(problem, options);
    } catch (const Error& e) {
        if (e.kind() != ErrorKind::kBadInput) throw;
        result.missing[name] = e.what();
        return;
    }
    result.plans[name] = describe(a->plan());
    std::vector<GatheredInput> inputs = gathered_;
    const fabric::Streams streams(stream_);
    if (own_q)
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const View q = a->query_memory(group_->local_ranks()[i]);
            fill_query(a->plan(), inputs[i].q, q, stream_);
            inputs[i].q = q;
        }
    *recording = true;
    a->attend_and_scatter(inputs, streams);
    *recording = false;
    add(name, sender_part(a, inputs, streams), receiver_part(a, streams), [this, a](int local) {
        return a->out_memory(0, group_->local_ranks()[static_cast<std::size_t>(local)]);
    });
    if (layout == Layout::kPages || layout == Layout::kPeers || layout == Layout::kBatched)
        add(std::string("kernels ") + name_of(layout), [this, calls] {
            for (const AttentionCall& call : *calls) plug_.run(call);
        });
}

/// A call without its attention.
void RankBench::add_signals(const Problem& problem) {
    Options options = options_for(Layout::kBatched, true);
    options.plug.run = [](const AttentionCall&) {};
    UlyssesAttention* a = &attention(problem, options);
    std::vector<GatheredInput> inputs = gathered_;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        inputs[i].q = a->query_memory(group_->local_ranks()[i]);
    const fabric::Streams streams(stream_);
    add("signals alone", sender_part(a, inputs, streams), receiver_part(a, streams));
}

std::vector<std::uint16_t> RankBench::rows_of(const Variant& v, int local, std::int64_t rows,
                                              std::int64_t width) const {
    const View view = v.out(local);
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * width));
    check_cuda(cudaMemcpy2D(values.data(), static_cast<std::size_t>(width) * 2, view.data,
                            static_cast<std::size_t>(view.row_stride) * 2,
                            static_cast<std::size_t>(width) * 2, static_cast<std::size_t>(rows),
                            cudaMemcpyDeviceToHost),
               "reading a result");
    return values;
}

/// Against the serial way. A kernel may choose other tiles for other rows per call, so bits may
/// differ by rounding; what rounding cannot explain is wrong.
void RankBench::compare(const Problem& p, ShapeTimes& result) {
    const auto reference = std::find_if(variants_.begin(), variants_.end(),
                                        [](const Variant& v) { return v.name == "serial packed"; });
    if (p.image_q() > 40000 || reference == variants_.end()) return;
    const std::int64_t width = std::int64_t{p.heads_q} * p.head_dim;
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
        const int local = static_cast<int>(i);
        const std::int64_t rows = p.rows_q[static_cast<std::size_t>(group_->local_ranks()[i])];
        const std::vector<std::uint16_t> want = rows_of(*reference, local, rows, width);
        for (const Variant& v : variants_) {
            if (!v.out) continue;
            const std::vector<std::uint16_t> got = rows_of(v, local, rows, width);
            double differing = 0, wrong = 0;
            for (std::size_t e = 0; e < got.size(); ++e) {
                if (got[e] == want[e]) continue;
                ++differing;
                const float a = Bf16{got[e]}.value(), b = Bf16{want[e]}.value();
                // Not <=, which NaN would pass.
                if (!(std::abs(a - b) < 1e-3f + 0.05f * std::abs(b))) ++wrong;
            }
            result.differing[v.name] += differing;
            result.wrong[v.name] += wrong;
        }
    }
}

void RankBench::time_all(const BenchShape& s) {
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
        for (View* v : {&in.q, &in.k, &in.v})
            *v = packed(buffer(static_cast<std::size_t>(s.rows * h * s.dim) * 2,
                               static_cast<unsigned>(buffers_.size() + 10 * r))
                            .get(),
                        s.rows, h, s.dim);
        gathered_.push_back(in);
    }
    add_alone(p);
    add_signals(p);
    for (Layout layout : {Layout::kScatter, Layout::kSplit}) add_stitched(layout, p, false, result);
    for (Layout layout : {Layout::kBatched, Layout::kPadded, Layout::kPages})
        add_stitched(layout, p, true, result);
    if (plug_.stores_to_peers) add_stitched(Layout::kPeers, p, false, result);
    add_exchanges(p, result);
    add_copies(p);
    if (nccl_) {
        add_nccl(p);
    } else {
        result.missing["serial nccl"] = nccl_missing_;
    }
    time_all(s);
    compare(p, result);
    for (Variant& v : variants_) result.variants[v.name] = v.times;
    group_->synchronize(stream_);
    group_->agree("shape done");
    variants_.clear();
    attentions_.clear();
    buffers_.clear();
    return result;
}

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
