// Speed of the simulator and of the advisor. Counters: events per GPU, ns per event.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "sim/advise.hpp"

namespace {

using namespace xstage;

sim::Scenario moe_scenario(int gpus, plan::MoeOrderKind kind) {
    sim::Scenario scenario;
    scenario.cluster.node =
        sim::read_node(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/sim-node.json", "st16");
    scenario.cluster.gpus = gpus;
    sim::Moe moe;
    moe.hidden = 7168;
    moe.intermediate = 2048;
    moe.experts = gpus == 72 ? 288 : 256;
    moe.top_k = 8;
    moe.tokens = 8192;
    moe.order = {kind, 0, 0, 2 * scenario.cluster.node.sms};
    moe.routing = std::make_shared<sim::Routing>(sim::seeded_routing(
        {moe.experts, gpus, moe.top_k,
         std::vector<std::int64_t>(static_cast<std::size_t>(gpus), moe.tokens), 1, 0, -1}));
    scenario.moe = moe;
    return scenario;
}

void simulate(benchmark::State& state, int gpus, plan::MoeOrderKind kind, int threads) {
    const sim::Scenario scenario = moe_scenario(gpus, kind);
    sim::RunOptions options;
    options.threads = threads;
    long events = 0;
    for (auto _ : state) {
        const sim::Result result = sim::run(scenario.cluster, scenario.programs(), options);
        events += result.events;
        benchmark::DoNotOptimize(result.total_ns);
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    state.counters["events"] =
        benchmark::Counter(static_cast<double>(events), benchmark::Counter::kAvgIterations);
    state.counters["s_per_event"] = benchmark::Counter(
        static_cast<double>(events), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    state.counters["peak_rss_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

void advise(benchmark::State& state) {
    const sim::Scenario scenario = moe_scenario(2, plan::MoeOrderKind::kWave);
    for (auto _ : state) {
        benchmark::DoNotOptimize(sim::advise(sim::options_of(scenario)).choice);
    }
}

void closed_form(benchmark::State& state) {
    const sim::Scenario scenario = moe_scenario(8, plan::MoeOrderKind::kWave);
    for (auto _ : state) {
        std::vector<plan::Candidate> candidates;
        for (const sim::Option& option : sim::options_of(scenario))
            candidates.push_back(option.candidate);
        benchmark::DoNotOptimize(
            plan::advise(candidates, 0, sim::limits_of(scenario.cluster.node), nullptr).choice);
    }
}

using plan::MoeOrderKind;
BENCHMARK_CAPTURE(simulate, moe_8_gpus_wave, 8, MoeOrderKind::kWave, 0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(simulate, moe_8_gpus_ratio, 8, MoeOrderKind::kRatio, 0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(simulate, moe_8_gpus_ratio_one_thread, 8, MoeOrderKind::kRatio, 1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, moe_2_gpus_ratio_one_thread, 2, MoeOrderKind::kRatio, 1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, moe_32_gpus_ratio_one_thread, 32, MoeOrderKind::kRatio, 1)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(simulate, moe_72_gpus_ratio, 72, MoeOrderKind::kRatio, 0)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK(closed_form)->Unit(benchmark::kMillisecond);
BENCHMARK(advise)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
