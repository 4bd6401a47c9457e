// What the model costs: a fit of the recorded node, and a million bursts predicted on one core.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>

#include "xstage/documents.hpp"
#include "xstage/model.hpp"

namespace {

using namespace xstage;

constexpr const char* kFirst = "first-recording.json";
constexpr const char* kProbe = "probe.json";  // three times the rows, ten store paths

Measurements recording(const std::string& name) {
    return read_measurements(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/" + name);
}

const model::Profile& profile() {
    static const model::Profile p = [] {
        model::FitOptions options;
        options.held_out = false;
        return model::fit(recording(kFirst), options);
    }();
    return p;
}

void note_memory(benchmark::State& state) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    state.counters["peak_MB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

void fit_node(benchmark::State& state, const char* name) {
    model::FitOptions options;
    options.held_out = state.range(0) != 0;
    const Measurements m = recording(name);
    for (auto _ : state) benchmark::DoNotOptimize(model::fit(m, options));
    note_memory(state);
}
void fits(benchmark::internal::Benchmark* b) {
    // All threads' CPU time: folds run side by side.
    b->ArgName("held_out")->Arg(0)->Arg(1)->Iterations(1)->MeasureProcessCPUTime();
    b->Unit(benchmark::kSecond);
}
BENCHMARK_CAPTURE(fit_node, first_recording, kFirst)->Apply(fits);
BENCHMARK_CAPTURE(fit_node, probe, kProbe)->Apply(fits);

// Bursts and gaps of a linear congruential sequence: no two alike, so nothing repeats.
model::Scenario million(bool equal) {
    model::Scenario s;
    std::uint32_t x = 1;
    for (int i = 0; i < 1'000'000; ++i) {
        x = x * 1664525u + 1013904223u;
        const double bytes = equal ? 16384 : 2048 + (x >> 18);
        const double gap = equal ? 6000 : 5000 + (x >> 8) % 8000;
        s.bursts.push_back({Bytes{bytes}, Nanoseconds{gap}});
    }
    return s;
}

void predict_a_million_bursts(benchmark::State& state) {
    const model::Scenario s = million(state.range(0) != 0);
    const model::Profile& p = profile();
    for (auto _ : state) benchmark::DoNotOptimize(model::predict(s, p));
    note_memory(state);
}
BENCHMARK(predict_a_million_bursts)
    ->ArgName("equal")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace

BENCHMARK_MAIN();
