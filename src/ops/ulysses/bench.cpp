#include "ops/ulysses/bench.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ops/bench_processes.hpp"
#include "ops/bench_statistics.hpp"
#include "ops/ulysses/bench_rank.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"
#include "xstage/ulysses/xstage_plug.hpp"
#include "xstage/version.hpp"

namespace xstage::ulysses {

namespace {

using Json = nlohmann::ordered_json;
using bench::quantile;
using bench::ratio;

Json to_json(const std::vector<ShapeTimes>& shapes) {
    Json all = Json::array();
    for (const ShapeTimes& s : shapes) {
        Json variants = Json::object();
        for (const auto& [name, times] : s.variants)
            variants[name] = {{"sender", times.sender}, {"receiver", times.receiver}};
        all.push_back({{"variants", variants},
                       {"plans", s.plans},
                       {"missing", s.missing},
                       {"differing", s.differing},
                       {"wrong", s.wrong}});
    }
    return all;
}

/// The slowest rank of every repetition.
std::vector<double> slowest(const std::vector<Json>& ranks, std::size_t shape,
                            const std::string& variant, const char* moment) {
    std::vector<double> times;
    for (const Json& rank : ranks) {
        const std::vector<double> mine = rank[shape]["variants"][variant][moment];
        times.resize(mine.size(), 0.0);
        for (std::size_t i = 0; i < mine.size(); ++i) times[i] = std::max(times[i], mine[i]);
    }
    return times;
}

double sum(const std::vector<Json>& ranks, std::size_t shape, const char* what,
           const std::string& variant) {
    double total = 0;
    for (const Json& rank : ranks) total += rank[shape][what].value(variant, 0.0);
    return total;
}

/// Q, K and V of the ranks of one GPU, read once and written once.
double exchanged_bytes(const BenchOptions& options, const BenchShape& s) {
    const int gpus = options.backend == fabric::Backend::kProcess ? options.world : 1;
    return 2.0 * 3 * 2 * static_cast<double>(s.rows) * s.heads * s.dim / gpus;
}

/// `report`: what is wrong, appended.
Json summarise(const BenchOptions& options, const std::vector<Json>& ranks, std::string& report) {
    Json rows = Json::array();
    std::size_t index = 0;
    for (const BenchShape& s : options.shapes) {
        if (s.heads < options.world) continue;
        const Json& first = ranks.front()[index];
        const std::vector<double> alone = slowest(ranks, index, "attention alone", "sender");
        Json variants = Json::object();
        for (const auto& [name, unused] : first["variants"].items()) {
            const std::vector<double> sender = slowest(ranks, index, name, "sender");
            const std::vector<double> receiver = slowest(ranks, index, name, "receiver");
            Json v = {{"sender_us", quantile(sender, 0.5)},
                      {"receiver_us", quantile(receiver, 0.5)},
                      {"repetitions", sender.size()},
                      {"sender_over_attention", ratio(sender, alone)},
                      {"receiver_over_attention", ratio(receiver, alone)}};
            if (first["plans"].contains(name)) v["plan"] = first["plans"][name];
            if (first["differing"].contains(name)) {
                v["elements_differing_from_serial"] = sum(ranks, index, "differing", name);
                const double wrong = sum(ranks, index, "wrong", name);
                v["elements_wrong"] = wrong;
                if (wrong > 0)
                    report += fmt::format(" {} of {} rows, {} heads of {}: {} elements;", name,
                                          s.rows, s.heads, s.dim, wrong);
            }
            if (name.starts_with("exchange kernel") || name.starts_with("copy")) {
                // The faster of the two copies in each repetition, over this.
                std::vector<double> copy = slowest(ranks, index, "copy kernel", "sender");
                const std::vector<double> driver =
                    slowest(ranks, index, "copy by the driver", "sender");
                for (std::size_t i = 0; i < copy.size(); ++i)
                    copy[i] = std::min(copy[i], driver[i]);
                v["copy_over_this"] = ratio(copy, sender);
                v["read_and_written_gb_per_s"] =
                    exchanged_bytes(options, s) / 1e3 / quantile(sender, 0.5);
            }
            variants[name] = v;
        }
        rows.push_back({{"rows", s.rows},
                        {"heads", s.heads},
                        {"head_dim", s.dim},
                        {"variants", variants},
                        {"missing", first["missing"]}});
        ++index;
    }
    return rows;
}

Json gpu_json() {
    Json gpus = Json::array();
    int count = 0;
    cudaGetDeviceCount(&count);
    for (int d = 0; d < count; ++d) {
        cudaDeviceProp prop{};
        cudaGetDeviceProperties(&prop, d);
        gpus.push_back({{"name", prop.name}, {"sms", prop.multiProcessorCount}});
    }
    return gpus;
}

}  // namespace

BenchReport run_bench(const BenchOptions& options) {
    const bool own = options.attention == "xstage";
    if (const std::string reason = own ? xstage_plug_missing() : cudnn_missing(); !reason.empty())
        throw Error(ErrorKind::kUnsupported, reason);
    const std::string group = fmt::format("bench-ulysses-{}", ::getpid());
    const bool process = options.backend == fabric::Backend::kProcess;
    std::vector<Json> ranks;
    for (const std::string& text : bench::in_processes(process ? options.world : 1, [&](int r) {
             return to_json(bench_rank(options, r, group)).dump();
         }))
        ranks.push_back(Json::parse(text));
    std::string wrong;
    const Json document = {{"schema_version", 1},
                           {"kind", "bench-ulysses"},
                           {"provenance",
                            {{"node", options.node},
                             {"gpus", gpu_json()},
                             {"tool_version", kVersion},
                             {"git_commit", options.git_commit},
                             {"argv", options.argv},
                             {"date", bench::now()}}},
                           {"backend", process ? "process" : "local"},
                           {"ranks", options.world},
                           {"attention", options.attention},
                           {"seed", options.seed},
                           {"shapes", summarise(options, ranks, wrong)}};
    return {document.dump(2) + "\n", wrong};
}

}  // namespace xstage::ulysses
