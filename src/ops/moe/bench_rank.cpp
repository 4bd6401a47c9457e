#include "ops/moe/bench_rank.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "ops/bench_processes.hpp"
#include "ops/bench_statistics.hpp"
#include "ops/moe/bench_layer.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// What one process needs for all configurations.
class RankBench {
  public:
    RankBench(const BenchOptions& options, int rank, const std::string& name,
              std::atomic<int>& stop)
        : options_(options),
          rank_(rank),
          stop_(stop),
          group_(
              bench::group_options(options.world == 1 ? fabric::Backend::kLocal : options.backend,
                                   options.world, rank, name)) {
        int device = 0;
        check_cuda(cudaGetDevice(&device), "cudaGetDevice");
        int cache = 0;
        check_cuda(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "the L2's size");
        flush_bytes_ = std::int64_t{4} * cache;
        flush_ = std::make_unique<Memory>(flush_bytes_);
        check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    ~RankBench() { cudaStreamDestroy(stream_); }
    RankBench(const RankBench&) = delete;
    RankBench& operator=(const RankBench&) = delete;

    Json all() {
        for (const Type type : options_.types)
            for (const BenchShape& shape : options_.shapes)
                for (const int slice : options_.slices) {
                    Problem p;
                    p.ranks = options_.world;
                    p.hidden = shape.hidden;
                    p.intermediate = shape.intermediate;
                    p.experts = options_.world * (shape.experts / slice);
                    p.top_k = shape.top_k;
                    p.type = type;
                    p.shared = options_.shared;
                    if (p.top_k > p.experts) continue;
                    if (!configurations(shape, slice, p)) return rows_;
                }
        return rows_;
    }

  private:
    /// Of one set of weights. False: the time is up.
    bool configurations(const BenchShape& shape, int slice, Problem p) {
        std::vector<std::unique_ptr<Experts>> experts;
        for (const int tokens : options_.tokens)
            for (const Routing routing : options_.routings) {
                if (time_is_up()) return false;
                p.max_tokens = tokens;
                for (std::size_t i = experts.size(); i < group_.local_ranks().size(); ++i)
                    experts.push_back(std::make_unique<Experts>(
                        p, 100U * static_cast<unsigned>(group_.local_ranks()[i]) + 1, stream_));
                Json row = {{"shape", shape.name},
                            {"type", p.type == Type::kFp8 ? "fp8" : "bf16"},
                            {"hidden", p.hidden},
                            {"intermediate", p.intermediate},
                            {"local_experts", p.local_experts()},
                            {"slice", slice},
                            {"top_k", p.top_k},
                            {"tokens", tokens},
                            {"routing", name_of(routing)}};
                if (p.shared) row["shared_expert"] = true;
                measure(p, experts, routing, row);
                rows_.push_back(row);
                if (rank_ == 0) say(row);
            }
        return true;
    }

    /// All ranks learn the same: rank 0 decides, and nobody looks before it has.
    bool time_is_up() {
        const std::chrono::duration<double> spent = Clock::now() - started_;
        if (rank_ == 0 && options_.seconds > 0 && spent.count() > options_.seconds) stop_ = 1;
        if (options_.world > 1) group_.agree("the next configuration");
        return stop_ != 0;
    }

    void flush(int value) {
        check_cuda(
            cudaMemsetAsync(flush_->get(), value, static_cast<std::size_t>(flush_bytes_), stream_),
            "flushing L2");
    }

    void measure(const Problem& p, const std::vector<std::unique_ptr<Experts>>& experts,
                 Routing routing, Json& row) {
        Layer layer(group_, p, experts, routing, options_, stream_);
        const std::vector<plan::MoeOrder> orders = orders_of(options_, p);
        std::vector<std::vector<double>> times(orders.size());
        std::vector<std::size_t> turn(orders.size());
        std::iota(turn.begin(), turn.end(), std::size_t{0});
        std::mt19937 random(options_.seed);  // the same turns on every rank
        for (int round = 0; round <= options_.repetitions; ++round) {
            std::shuffle(turn.begin(), turn.end(), random);
            for (const std::size_t i : turn) {
                layer.moe().set_order(orders[i]);
                flush(round);
                const double us = layer.microseconds();
                if (round > 0) times[i].push_back(us);  // round 0 warms up
                if (round == 0) layer.compare();
            }
        }
        Json spans = Json::object();
        for (std::size_t i = 0; options_.stamps && i < orders.size(); ++i) {
            layer.moe().set_order(orders[i]);
            flush(0);
            spans[name_of(orders[i])] = layer.store_spans();
        }
        row["workspace_bytes"] = layer.moe().memory_bytes();
        row["differing"] = layer.differing();
        Json& by_order = row["times"] = Json::object();
        for (std::size_t i = 0; i < orders.size(); ++i) by_order[name_of(orders[i])] = times[i];
        if (options_.stamps) row["store_spans"] = spans;
        group_.check();
        // Nobody frees what a peer may still store to.
        if (options_.world > 1) group_.agree("configuration done");
    }

    /// Progress, for whoever waits.
    static void say(const Json& row) {
        std::string line =
            fmt::format("{} {} E={} T={} {}:", row["shape"].get<std::string>(),
                        row["type"].get<std::string>(), row["local_experts"].get<int>(),
                        row["tokens"].get<int>(), row["routing"].get<std::string>());
        for (const auto& [name, times] : row["times"].items())
            line += fmt::format(" {} {:.0f}", name,
                                bench::quantile(times.get<std::vector<double>>(), 0.5));
        fmt::print(stderr, "{} us\n", line);
    }

    const BenchOptions& options_;
    int rank_;
    std::atomic<int>& stop_;
    Clock::time_point started_ = Clock::now();
    fabric::Fabric group_;
    std::int64_t flush_bytes_ = 0;
    std::unique_ptr<Memory> flush_;
    cudaStream_t stream_ = nullptr;
    Json rows_ = Json::array();
};

}  // namespace

std::vector<plan::MoeOrder> orders_of(const BenchOptions& options, const Problem& problem) {
    std::vector<plan::MoeOrder> orders = options.orders;
    const plan::MoeOrder advised = choose_order(problem);
    const bool there = std::any_of(orders.begin(), orders.end(), [&](const plan::MoeOrder& o) {
        return name_of(o) == name_of(advised);
    });
    if (!there) orders.push_back(advised);
    return orders;
}

Json bench_rank(const BenchOptions& options, int rank, const std::string& group,
                std::atomic<int>& stop) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        throw Error(ErrorKind::kUnsupported, "no GPU");
    const bool alone = options.world == 1 || options.backend == fabric::Backend::kLocal;
    check_cuda(cudaSetDevice(alone ? 0 : rank % count), "cudaSetDevice");
    return RankBench(options, rank, group, stop).all();
}

}  // namespace xstage::moe
