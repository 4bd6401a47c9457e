#include "ops/moe/bench.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "core/json.hpp"
#include "ops/bench_processes.hpp"
#include "ops/bench_statistics.hpp"
#include "ops/moe/bench_layer.hpp"
#include "ops/moe/bench_rank.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

namespace xstage::moe {
namespace {

using Json = nlohmann::ordered_json;

/// A number that this process and its children see alike.
class SharedFlag {
  public:
    SharedFlag()
        : memory_(::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        if (memory_ == MAP_FAILED)
            throw Error(ErrorKind::kEnvironment, "no memory to share with the ranks");
        new (memory_) std::atomic<int>(0);
    }
    ~SharedFlag() { ::munmap(memory_, sizeof(std::atomic<int>)); }
    SharedFlag(const SharedFlag&) = delete;
    SharedFlag& operator=(const SharedFlag&) = delete;
    std::atomic<int>& get() { return *static_cast<std::atomic<int>*>(memory_); }

  private:
    void* memory_;
};

/// The slowest process of every repetition.
std::vector<double> slowest(const std::vector<Json>& processes, std::size_t row,
                            const std::string& order) {
    std::vector<double> times;
    for (const Json& process : processes) {
        const std::vector<double> mine = process[row]["times"][order];
        times.resize(mine.size(), 0.0);
        for (std::size_t i = 0; i < mine.size(); ++i) times[i] = std::max(times[i], mine[i]);
    }
    return times;
}

Problem problem_of(const BenchOptions& o, const Json& row) {
    Problem p;
    p.ranks = o.world;
    p.max_tokens = row["tokens"];
    p.hidden = row["hidden"];
    p.intermediate = row["intermediate"];
    p.experts = o.world * row["local_experts"].get<int>();
    p.top_k = row["top_k"];
    p.type = row["type"] == "fp8" ? Type::kFp8 : Type::kBf16;
    p.shared = o.shared;
    return p;
}

/// Rows per rank: those of routes on average, whole blocks of the busiest rank.
struct Work {
    double routes = 0, away = 0;
    Load busiest;

    Work(const BenchOptions& o, const Problem& p, const std::string& routing) {
        const auto* const which = std::find_if(std::begin(kRoutings), std::end(kRoutings),
                                               [&](Routing r) { return name_of(r) == routing; });
        std::vector<std::vector<std::int32_t>> all;
        for (int r = 0; r < p.ranks; ++r)
            all.push_back(routes_of(p, p.max_tokens, r, *which, o.seed));
        for (const Load& load : loads_of(p, all)) {
            routes += static_cast<double>(load.routes) / p.ranks;
            away += static_cast<double>(load.away) / p.ranks;
            if (load.blocks >= busiest.blocks) busiest = load;
        }
        if (!p.shared) return;
        routes += p.max_tokens;
        busiest.routes += p.max_tokens;
        busiest.blocks += (p.max_tokens + kTileRows - 1) / kTileRows;
        busiest.experts_hit += 1;
    }
};

/// One order against the best wave, of repetitions in the same round.
struct Timed {
    std::string name;
    std::vector<double> times;
    double us = 0;
};

Json summarise_row(const BenchOptions& o, const std::vector<Json>& processes, std::size_t index) {
    const Json& first = processes.front()[index];
    const Problem p = problem_of(o, first);
    const Work work(o, p, first["routing"]);
    const double flop = 6.0 * p.hidden * p.intermediate;
    const double bytes = static_cast<double>(work.busiest.experts_hit) * 3 * p.hidden *
                         p.intermediate * p.element_bytes();
    Json row = first;
    row.erase("times");
    row.erase("differing");
    row.erase("store_spans");
    Json orders = Json::object();
    std::vector<Timed> waves, others;
    for (const auto& [name, unused] : first["times"].items()) {
        Timed timed{name, slowest(processes, index, name), 0};
        const double us = timed.us = bench::quantile(timed.times, 0.5);
        orders[name] = {{"us", us},
                        {"us_least", *std::min_element(timed.times.begin(), timed.times.end())},
                        {"us_most", *std::max_element(timed.times.begin(), timed.times.end())},
                        {"tflops", flop * work.routes / us * 1e-6},
                        {"tflops_padded",
                         flop * static_cast<double>(work.busiest.blocks * kTileRows) / us * 1e-6},
                        {"weight_gb_per_s", bytes / us * 1e-3}};
        if (o.stamps) {
            Json& spans = orders[name]["store_spans"] = Json::array();
            for (const Json& process : processes)
                for (const Json& rank : process[index]["store_spans"][name]) spans.push_back(rank);
        }
        (name.starts_with("wave") ? waves : others).push_back(std::move(timed));
    }
    std::int64_t differing = 0;
    for (const Json& process : processes) differing += process[index]["differing"].get<int64_t>();
    row["routes"] = work.routes;
    row["routes_away"] = work.routes > 0 ? work.away / work.routes : 0;
    row["routes_of_busiest_rank"] = work.busiest.routes;
    row["blocks"] = work.busiest.blocks;
    row["experts_hit"] = work.busiest.experts_hit;
    row["most_rows_of_an_expert"] = work.busiest.most;
    row["elements_differing_between_orders"] = differing;
    row["orders"] = orders;
    const auto faster = [](const Timed& a, const Timed& b) { return a.us < b.us; };
    const auto wave = std::min_element(waves.begin(), waves.end(), faster);
    const std::string advised = name_of(choose_order(p));
    row["advisor"] = advised;
    if (wave == waves.end()) return row;
    row["best_wave"] = wave->name;
    Json& over = row["best_wave_over"] = Json::object();
    for (const std::vector<Timed>* group : {&waves, &others})
        for (const Timed& t : *group)
            if (group == &others || t.name == advised)
                over[t.name] = bench::ratio(wave->times, t.times);
    if (!others.empty())
        row["best_wave_over_best_interleaved"] =
            wave->us / std::min_element(others.begin(), others.end(), faster)->us;
    return row;
}

/// The GPUs that the ranks used.
Json gpus_of(const BenchOptions& o, int& processors) {
    Json names = Json::array();
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    const bool one = o.world == 1 || o.backend == fabric::Backend::kLocal;
    for (int d = 0; d < std::min(one ? 1 : o.world, count); ++d) {
        cudaDeviceProp prop{};
        check_cuda(cudaGetDeviceProperties(&prop, d), "cudaGetDeviceProperties");
        processors = prop.multiProcessorCount;
        names.push_back(prop.name);
    }
    return names;
}

}  // namespace

BenchReport run_bench(const BenchOptions& o) {
    const bool process = o.world > 1 && o.backend == fabric::Backend::kProcess;
    const std::string group = fmt::format("bench-moe-{}", ::getpid());
    SharedFlag stop;
    std::vector<Json> ranks;
    for (const std::string& text : bench::in_processes(process ? o.world : 1, [&](int r) {
             return bench_rank(o, r, group, stop.get()).dump();
         }))
        ranks.push_back(Json::parse(text));
    Json rows = Json::array();
    std::string wrong;
    for (std::size_t i = 0; i < ranks.front().size(); ++i) {
        rows.push_back(summarise_row(o, ranks, i));
        const Json& row = rows.back();
        if (row["elements_differing_between_orders"] != 0)
            wrong += fmt::format(" {} {} of {} tokens, {};", row["shape"].get<std::string>(),
                                 row["type"].get<std::string>(), row["tokens"].get<int>(),
                                 row["routing"].get<std::string>());
    }
    int processors = 0;
    const Json gpus = gpus_of(o, processors);
    const Json document = {{"schema_version", 1},
                           {"kind", "bench-moe"},
                           {"provenance",
                            {{"node", o.node},
                             {"gpu", gpus.front()},
                             {"gpus", gpus},
                             {"sms", processors},
                             {"tool_version", kVersion},
                             {"git_commit", o.git_commit},
                             {"argv", o.argv},
                             {"date", bench::now()}}},
                           {"backend", process ? "process" : "local"},
                           {"ranks", o.world},
                           {"ranks_per_gpu", (o.world + static_cast<int>(gpus.size()) - 1) /
                                                 static_cast<int>(gpus.size())},
                           {"store_path", o.store == StorePath::kBulk ? "bulk" : "st16"},
                           {"repetitions", o.repetitions},
                           {"seed", o.seed},
                           {"complete", stop.get() == 0},
                           {"rows", rows}};
    return {core::dump_json(document), wrong};
}

}  // namespace xstage::moe
