#include "ops/moe/bench_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moe/fill.hpp"
#include "ops/bench_statistics.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBlock = std::int64_t{kScaleGroup} * kScaleGroup;

std::int64_t elements1(const Problem& p) {
    return std::int64_t{2} * p.held_experts() * p.intermediate * p.hidden;
}
std::int64_t elements2(const Problem& p) {
    return elements1(p) / 2;
}

Json summary(const std::vector<Stamp>& stamps, std::uint32_t dropped) {
    std::vector<double> ns, cycles;
    std::int64_t rows_away = 0;
    std::uint64_t begin = ~std::uint64_t{0};
    std::uint64_t end = 0;
    std::uint32_t full = 0;
    for (const Stamp& s : stamps) full = std::max(full, s.bytes);
    std::int64_t bursts = 0;
    for (const Stamp& s : stamps) {
        if (s.bytes == 0) continue;
        ++bursts;
        rows_away += s.destination;
        begin = std::min(begin, s.issue_start_ns);
        end = std::max(end, s.issue_end_ns);
        if (s.bytes != full) continue;  // of equal payload only
        ns.push_back(static_cast<double>(s.issue_end_ns - s.issue_start_ns));
        cycles.push_back(static_cast<double>(s.issue_end_cycles - s.issue_start_cycles));
    }
    if (ns.empty()) return nullptr;
    using bench::quantile;
    return {{"bursts", bursts},
            {"dropped", dropped},
            {"full_bursts", ns.size()},
            {"bytes", full},
            {"rows_away", rows_away},
            {"median_ns", quantile(ns, 0.5)},
            {"p90_ns", quantile(ns, 0.9)},
            {"p99_ns", quantile(ns, 0.99)},
            {"most_ns", quantile(ns, 1)},
            {"median_cycles", quantile(cycles, 0.5)},
            {"first_to_last_us", static_cast<double>(end - begin) * 1e-3}};
}

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    throw Error(ErrorKind::kEnvironment, fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

Memory::Memory(std::int64_t bytes) {
    check_cuda(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 256))),
               "cudaMalloc");
}

Experts::Experts(const Problem& p, unsigned seed, cudaStream_t stream)
    : w1(elements1(p) * p.element_bytes()),
      w2(elements2(p) * p.element_bytes()),
      s1(elements1(p) / kBlock * 4),
      s2(elements2(p) / kBlock * 4) {
    const float size1 = std::sqrt(3.0F / static_cast<float>(p.hidden));
    const float size2 = std::sqrt(3.0F / static_cast<float>(p.intermediate));
    using kernels::fill_floats;
    using kernels::fill_random;
    check_cuda(fill_random(w1.get(), elements1(p), p.type, size1, seed, stream), "filling w1");
    check_cuda(fill_random(w2.get(), elements2(p), p.type, size2, seed + 1, stream), "filling w2");
    if (p.type != Type::kFp8) return;
    check_cuda(fill_floats(s1.get<float>(), elements1(p) / kBlock, 0.5F * size1 / 64, size1 / 64,
                           seed + 2, stream),
               "filling s1");
    check_cuda(fill_floats(s2.get<float>(), elements2(p) / kBlock, 0.5F * size2 / 64, size2 / 64,
                           seed + 3, stream),
               "filling s2");
}

Layer::Layer(fabric::Fabric& group, const Problem& problem,
             const std::vector<std::unique_ptr<Experts>>& experts, Routing routing,
             const BenchOptions& options, cudaStream_t stream)
    : group_(group), problem_(problem), stream_(stream) {
    std::vector<Weights> weights;
    for (const auto& e : experts) weights.push_back(e->weights());
    Options o;
    o.store = options.store;
    moe_ = std::make_unique<MegaMoe>(group, problem_, weights, o);
    for (const int r : group.local_ranks()) {
        ranks_.push_back(
            std::make_unique<Rank>(std::int64_t{problem_.max_tokens} * problem_.hidden * 2));
        fill(*ranks_.back(), r, routing, options.seed);
    }
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
}
Layer::~Layer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
}

void Layer::fill(Rank& rank, int number, Routing routing, unsigned seed) {
    const Problem& p = problem_;
    const std::int64_t tokens = p.max_tokens;
    const InputMemory in = moe_->input_memory(number);
    const unsigned base = 100U * static_cast<unsigned>(number);
    check_cuda(
        kernels::fill_random(in.x, tokens * p.hidden, p.type, std::sqrt(3.0F), base + 5, stream_),
        "filling x");
    if (in.x_scale != nullptr)
        check_cuda(kernels::fill_floats(in.x_scale, tokens * p.hidden / kScaleGroup, 0.5F / 64,
                                        1.0F / 64, base + 6, stream_),
                   "filling x_scale");
    check_cuda(kernels::fill_floats(in.weights, tokens * p.top_k, 0.05F, 0.3F, base + 7, stream_),
               "filling weights");
    const auto routes = routes_of(p, p.max_tokens, number, routing, seed);
    check_cuda(cudaMemcpyAsync(in.experts, routes.data(), routes.size() * 4, cudaMemcpyHostToDevice,
                               stream_),
               "copying routes");
    check_cuda(cudaStreamSynchronize(stream_), "filling the input");
    rank.input.tokens = p.max_tokens;
    rank.input.x = in.x;
    rank.input.x_scale = in.x_scale;
    rank.input.experts = in.experts;
    rank.input.weights = in.weights;
    rank.input.y = rank.y.get();
}

double Layer::microseconds() {
    std::vector<Input> inputs;
    for (const auto& rank : ranks_) inputs.push_back(rank->input);
    if (group_.world() > 1) group_.barrier(stream_);
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    moe_->run(inputs, fabric::Streams(stream_));
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "running the layer");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e3;
}

void Layer::compare() {
    const std::int64_t words = std::int64_t{problem_.max_tokens} * problem_.hidden;
    if (!kept_) check_cuda(cudaMemsetAsync(count_.get(), 0, 8, stream_), "cudaMemset");
    for (const auto& rank : ranks_) {
        if (!kept_)
            check_cuda(cudaMemcpyAsync(rank->first.get(), rank->y.get(),
                                       static_cast<std::size_t>(words) * 2,
                                       cudaMemcpyDeviceToDevice, stream_),
                       "keeping y");
        check_cuda(kernels::count_differences(rank->y.get<std::uint16_t>(),
                                              rank->first.get<std::uint16_t>(), words,
                                              count_.get<unsigned long long>(), stream_),
                   "comparing results");
    }
    kept_ = true;
}

std::int64_t Layer::differing() const {
    unsigned long long count = 0;
    check_cuda(cudaStreamSynchronize(stream_), "comparing results");
    check_cuda(cudaMemcpy(&count, count_.get(), sizeof count, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    return static_cast<std::int64_t>(count);
}

Json Layer::store_spans() {
    const auto producers = static_cast<std::uint32_t>(moe_->stamp_producers());
    // A warp stamps at most every tile of its CTA; tiles are claimed evenly to within a few.
    const std::int64_t tiles =
        std::int64_t{moe_->layout().max_blocks} * (problem_.hidden / kTileColumns);
    const auto bursts = static_cast<std::uint32_t>(tiles * 8 / producers * 4 + 64);
    const std::size_t slots = std::size_t{producers} * bursts;
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<StampBuffer> buffers;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
        memory.push_back(std::make_unique<Memory>(slots * sizeof(Stamp) + 16));
        auto* const stamps = memory.back()->get<Stamp>();
        check_cuda(cudaMemsetAsync(stamps, 0, slots * sizeof(Stamp) + 16, stream_), "cudaMemset");
        buffers.push_back(
            {stamps, reinterpret_cast<std::uint32_t*>(stamps + slots), producers, bursts});
    }
    moe_->set_stamps(buffers);
    const double us = microseconds();
    moe_->set_stamps({});
    Json all = Json::array();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
        std::vector<Stamp> stamps(slots);
        std::uint32_t dropped = 0;
        check_cuda(cudaMemcpy(stamps.data(), buffers[i].stamps, slots * sizeof(Stamp),
                              cudaMemcpyDeviceToHost),
                   "reading stamps");
        check_cuda(cudaMemcpy(&dropped, buffers[i].dropped, 4, cudaMemcpyDeviceToHost),
                   "reading stamps");
        Json spans = summary(stamps, dropped);
        if (spans.is_null()) continue;  // a rank that stores nothing
        spans["rank"] = group_.local_ranks()[i];
        spans["stamped_us"] = us;
        all.push_back(spans);
    }
    return all;
}

}  // namespace xstage::moe
