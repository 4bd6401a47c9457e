#include "ops/moe/bench.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "core/json.hpp"
#include "moe/fill.hpp"
#include "xstage/error.hpp"
#include "xstage/moe.hpp"
#include "xstage/version.hpp"

namespace xstage::moe {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    throw Error(ErrorKind::kEnvironment, fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

/// Device memory that goes with the object.
class Memory {
  public:
    explicit Memory(std::int64_t bytes) {
        check(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 256))),
              "cudaMalloc");
    }
    ~Memory() { cudaFree(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <class T = void>
    T* get() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_ = nullptr;
};

/// One rank's experts, filled with random numbers.
struct Experts {
    Problem problem;
    Memory w1, w2, s1, s2;

    Experts(const Problem& p, cudaStream_t stream)
        : problem(p),
          w1(elements1(p) * p.element_bytes()),
          w2(elements2(p) * p.element_bytes()),
          s1(elements1(p) / kBlock * 4),
          s2(elements2(p) / kBlock * 4) {
        const float size1 = std::sqrt(3.0F / static_cast<float>(p.hidden));
        const float size2 = std::sqrt(3.0F / static_cast<float>(p.intermediate));
        using kernels::fill_floats;
        using kernels::fill_random;
        check(fill_random(w1.get(), elements1(p), p.type, size1, 1, stream), "filling w1");
        check(fill_random(w2.get(), elements2(p), p.type, size2, 2, stream), "filling w2");
        if (p.type != Type::kFp8) return;
        check(fill_floats(s1.get<float>(), elements1(p) / kBlock, 0.5F * size1 / 64, size1 / 64, 3,
                          stream),
              "filling s1");
        check(fill_floats(s2.get<float>(), elements2(p) / kBlock, 0.5F * size2 / 64, size2 / 64, 4,
                          stream),
              "filling s2");
    }
    Weights weights() const { return {w1.get(), w2.get(), s1.get<float>(), s2.get<float>()}; }

  private:
    static constexpr std::int64_t kBlock = std::int64_t{kScaleGroup} * kScaleGroup;
    static std::int64_t elements1(const Problem& p) {
        return std::int64_t{2} * p.experts * p.intermediate * p.hidden;
    }
    static std::int64_t elements2(const Problem& p) { return elements1(p) / 2; }
};

std::vector<std::int32_t> routes_of(const Problem& p, int tokens, Routing routing, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> all(static_cast<std::size_t>(p.experts));
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::int32_t> routes;
    for (int t = 0; t < tokens; ++t) {
        for (int s = 0; s < p.top_k; ++s) {
            const auto at = static_cast<std::size_t>(s);
            std::swap(all[at], all[at + random() % (all.size() - at)]);
        }
        // A tenth of all routes is top_k tenths of the tokens, each with one slot there.
        const bool hot = routing == Routing::kHot && random() % 10000 < 1000U * p.top_k;
        const auto end = all.begin() + p.top_k;
        if (hot && std::find(all.begin(), end, 0) == end)
            std::iter_swap(all.begin(), std::find(end, all.end(), 0));
        routes.insert(routes.end(), all.begin(), end);
    }
    return routes;
}

/// What the routing makes of a layer.
struct Load {
    std::int64_t routes = 0, blocks = 0, experts_hit = 0, most = 0;
};
Load load_of(const Problem& p, const std::vector<std::int32_t>& routes) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(p.experts));
    for (const std::int32_t e : routes) ++rows[static_cast<std::size_t>(e)];
    Load load;
    for (const std::int64_t r : rows) {
        load.routes += r;
        load.blocks += (r + kTileRows - 1) / kTileRows;
        load.experts_hit += r > 0 ? 1 : 0;
        load.most = std::max(load.most, r);
    }
    return load;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// A layer with its input and one event pair.
class Layer {
  public:
    Layer(fabric::Fabric& group, const Experts& experts, int tokens, Routing routing,
          const BenchOptions& options, cudaStream_t stream)
        : problem_(with_tokens(experts.problem, tokens)),
          routes_(routes_of(problem_, tokens, routing, options.seed)),
          stream_(stream),
          y_(std::int64_t{tokens} * problem_.hidden * 2),
          first_(std::int64_t{tokens} * problem_.hidden * 2) {
        const Weights weights = experts.weights();
        Options o;
        o.store = options.store;
        moe_ = std::make_unique<MegaMoe>(group, problem_, std::span(&weights, 1), o);
        const InputMemory in = moe_->input_memory(0);
        check(kernels::fill_random(in.x, std::int64_t{tokens} * problem_.hidden, problem_.type,
                                   std::sqrt(3.0F), 5, stream),
              "filling x");
        if (in.x_scale != nullptr)
            check(kernels::fill_floats(in.x_scale,
                                       std::int64_t{tokens} * problem_.hidden / kScaleGroup,
                                       0.5F / 64, 1.0F / 64, 6, stream),
                  "filling x_scale");
        check(kernels::fill_floats(in.weights, std::int64_t{tokens} * problem_.top_k, 0.05F, 0.3F,
                                   7, stream),
              "filling weights");
        check(cudaMemcpyAsync(in.experts, routes_.data(), routes_.size() * 4,
                              cudaMemcpyHostToDevice, stream),
              "copying routes");
        input_.tokens = tokens;
        input_.x = in.x;
        input_.x_scale = in.x_scale;
        input_.experts = in.experts;
        input_.weights = in.weights;
        input_.y = y_.get();
        check(cudaEventCreate(&begin_), "cudaEventCreate");
        check(cudaEventCreate(&end_), "cudaEventCreate");
    }
    ~Layer() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

    Load load() const { return load_of(problem_, routes_); }
    const Problem& problem() const { return problem_; }
    std::size_t memory_bytes() const { return moe_->memory_bytes(); }
    void set_order(const plan::MoeOrder& order) { moe_->set_order(order); }

    double microseconds() {
        check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
        moe_->run(std::span(&input_, 1), fabric::Streams(stream_));
        check(cudaEventRecord(end_, stream_), "cudaEventRecord");
        check(cudaEventSynchronize(end_), "running the layer");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
        return ms * 1e3;
    }
    /// Keeps the first result it is asked about and counts what differs from it in later ones.
    void compare() {
        const std::int64_t words = std::int64_t{input_.tokens} * problem_.hidden;
        if (!kept_) {
            check(cudaMemcpyAsync(first_.get(), y_.get(), static_cast<std::size_t>(words) * 2,
                                  cudaMemcpyDeviceToDevice, stream_),
                  "keeping y");
            check(cudaMemsetAsync(count_.get(), 0, 8, stream_), "cudaMemset");
            kept_ = true;
        }
        check(kernels::count_differences(y_.get<std::uint16_t>(), first_.get<std::uint16_t>(),
                                         words, count_.get<unsigned long long>(), stream_),
              "comparing results");
    }
    std::int64_t differing() const {
        unsigned long long count = 0;
        check(cudaStreamSynchronize(stream_), "comparing results");
        check(cudaMemcpy(&count, count_.get(), sizeof count, cudaMemcpyDeviceToHost), "cudaMemcpy");
        return static_cast<std::int64_t>(count);
    }

  private:
    static Problem with_tokens(Problem p, int tokens) {
        p.max_tokens = tokens;
        return p;
    }

    Problem problem_;
    std::vector<std::int32_t> routes_;
    cudaStream_t stream_;
    Memory y_, first_, count_{8};
    bool kept_ = false;
    std::unique_ptr<MegaMoe> moe_;
    Input input_;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

bool is_wave(const plan::MoeOrder& order) {
    return order.kind == plan::MoeOrderKind::kWave;
}

Json measure(Layer& layer, const BenchOptions& o, const Memory& flush, std::int64_t flush_bytes,
             cudaStream_t stream) {
    std::vector<std::vector<double>> times(o.orders.size());
    std::vector<std::size_t> turn(o.orders.size());
    std::iota(turn.begin(), turn.end(), std::size_t{0});
    std::mt19937 random(o.seed);
    for (int round = 0; round <= o.repetitions; ++round) {
        std::shuffle(turn.begin(), turn.end(), random);
        for (const std::size_t i : turn) {
            layer.set_order(o.orders[i]);
            check(
                cudaMemsetAsync(flush.get(), round, static_cast<std::size_t>(flush_bytes), stream),
                "flushing L2");
            const double us = layer.microseconds();
            if (round > 0) times[i].push_back(us);  // round 0 warms up
            if (round == 0) layer.compare();
        }
    }
    const Problem& p = layer.problem();
    const Load load = layer.load();
    const double flop = 6.0 * p.hidden * p.intermediate;
    const double bytes =
        static_cast<double>(load.experts_hit) * 3 * p.hidden * p.intermediate * p.element_bytes();
    Json orders = Json::object();
    double best_wave = std::numeric_limits<double>::infinity();
    double best_other = best_wave;
    for (std::size_t i = 0; i < o.orders.size(); ++i) {
        const double us = median(times[i]);
        double& best = is_wave(o.orders[i]) ? best_wave : best_other;
        best = std::min(best, us);
        orders[name_of(o.orders[i])] = {
            {"us", us},
            {"us_least", *std::min_element(times[i].begin(), times[i].end())},
            {"us_most", *std::max_element(times[i].begin(), times[i].end())},
            {"tflops", flop * static_cast<double>(load.routes) / us * 1e-6},
            {"tflops_padded", flop * static_cast<double>(load.blocks * kTileRows) / us * 1e-6},
            {"weight_gb_per_s", bytes / us * 1e-3}};
    }
    Json row = {{"routes", load.routes},
                {"blocks", load.blocks},
                {"experts_hit", load.experts_hit},
                {"most_rows_of_an_expert", load.most},
                {"workspace_bytes", layer.memory_bytes()},
                {"elements_differing_between_orders", layer.differing()},
                {"orders", orders}};
    if (std::isfinite(best_wave) && std::isfinite(best_other))
        row["best_wave_over_best_interleaved"] = best_wave / best_other;
    return row;
}

/// Progress, for whoever waits.
void say(const Json& row) {
    std::string line = fmt::format("{} {} E={} T={} {}:", row["shape"].get<std::string>(),
                                   row["type"].get<std::string>(), row["local_experts"].get<int>(),
                                   row["tokens"].get<int>(), row["routing"].get<std::string>());
    for (const auto& [name, order] : row["orders"].items())
        line += fmt::format(" {} {:.0f}", name, order["us"].get<double>());
    fmt::print(stderr, "{} us\n", line);
}

std::string now() {
    char text[32];
    const std::time_t t = std::time(nullptr);
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&t));
    return text;
}

}  // namespace

std::string run_bench(const BenchOptions& o) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        throw Error(ErrorKind::kUnsupported, "no GPU");
    cudaDeviceProp device{};
    check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    const auto started = Clock::now();
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    fabric::FabricOptions fo;
    fo.backend = fabric::Backend::kLocal;
    fo.world = 1;
    fo.devices = {0};
    fo.wait_timeout = std::chrono::seconds(5);
    fabric::Fabric group(fo);
    const std::int64_t flush_bytes = std::int64_t{4} * device.l2CacheSize;
    const Memory flush(flush_bytes);
    Json rows = Json::array();
    bool complete = true;
    for (const Type type : o.types)
        for (const BenchShape& s : o.shapes)
            for (const int slice : o.slices) {
                Problem p;
                p.hidden = s.hidden;
                p.intermediate = s.intermediate;
                p.experts = s.experts / slice;
                p.top_k = s.top_k;
                p.type = type;
                if (p.top_k > p.experts) continue;
                std::unique_ptr<Experts> experts;
                for (const int tokens : o.tokens)
                    for (const Routing routing : o.routings) {
                        const std::chrono::duration<double> spent = Clock::now() - started;
                        if (o.seconds > 0 && spent.count() > o.seconds) {
                            complete = false;
                            continue;
                        }
                        if (!experts) experts = std::make_unique<Experts>(p, stream);
                        Layer layer(group, *experts, tokens, routing, o, stream);
                        Json row = {{"shape", s.name},
                                    {"type", type == Type::kFp8 ? "fp8" : "bf16"},
                                    {"hidden", s.hidden},
                                    {"intermediate", s.intermediate},
                                    {"local_experts", p.experts},
                                    {"slice", slice},
                                    {"top_k", s.top_k},
                                    {"tokens", tokens},
                                    {"routing", routing == Routing::kHot ? "hot" : "balanced"}};
                        row.update(measure(layer, o, flush, flush_bytes, stream));
                        group.check();
                        rows.push_back(row);
                        say(row);
                    }
            }
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    const Json document = {{"schema_version", 1},
                           {"kind", "bench-moe"},
                           {"provenance",
                            {{"node", o.node},
                             {"gpu", device.name},
                             {"sms", device.multiProcessorCount},
                             {"tool_version", kVersion},
                             {"git_commit", o.git_commit},
                             {"argv", o.argv},
                             {"date", now()}}},
                           {"store_path", o.store == StorePath::kBulk ? "bulk" : "st16"},
                           {"repetitions", o.repetitions},
                           {"seed", o.seed},
                           {"complete", complete},
                           {"rows", rows}};
    return core::dump_json(document);
}

}  // namespace xstage::moe
