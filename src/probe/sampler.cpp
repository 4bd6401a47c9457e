#include "probe/sampler.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "probe/statistics.hpp"
#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

template <class Sample>
std::optional<GigaHertz> clock_of(const Sample& sample) {
    return ClockJudge::clock(Cycles{sample.window_cycles}, Nanoseconds{sample.window_ns});
}

template <class Sample>
struct Collected {
    std::vector<Sample> samples;  ///< those the row is made of
    std::optional<GigaHertz> clock;
    int marked_samples = 0;
    bool marked = false;
};

template <class Sample, class Take>
Collected<Sample> collect(Node& node, const SamplePolicy& policy, const ClockJudge& judge,
                          Beside beside, Tally& tally, Take take) {
    std::vector<Sample> good, shifted;
    for (int attempt = 0; attempt <= policy.retries; ++attempt) {
        if (attempt > 0) node.warm_up(policy.warm_up_ms);
        const int missing = policy.samples - static_cast<int>(good.size());
        std::vector<Sample> taken = take(missing);
        // One reading for the launch: throttling lasts longer than a launch does.
        const bool throttled = node.throttle().throttled;
        for (Sample& sample : taken) {
            const bool bad = throttled || judge.shifted(clock_of(sample), beside);
            ++tally.taken;
            tally.marked += bad;
            (bad ? shifted : good).push_back(std::move(sample));
        }
        if (static_cast<int>(good.size()) >= policy.samples) break;
    }
    Collected<Sample> out;
    out.marked_samples = static_cast<int>(shifted.size());
    out.marked = static_cast<int>(good.size()) < policy.samples;
    out.samples = std::move(good);
    if (out.marked) {
        out.samples.insert(out.samples.end(), std::make_move_iterator(shifted.begin()),
                           std::make_move_iterator(shifted.end()));
    }
    std::vector<double> clocks;
    for (const Sample& sample : out.samples) {
        if (const auto clock = clock_of(sample)) clocks.push_back(clock->value());
    }
    if (!clocks.empty()) out.clock = GigaHertz{median(clocks)};
    ++tally.rows;
    tally.marked_rows += out.marked;
    return out;
}

}  // namespace

BurstRow measure(Node& node, const StoreConfig& config, const SamplePolicy& policy,
                 const ClockJudge& judge, Tally& tally) {
    const auto collected =
        collect<StoreSample>(node, policy, judge, config.beside, tally,
                             [&](int samples) { return node.store(config, samples); });
    BurstRow row = summarise(config, collected.samples);
    row.clock = collected.clock;
    row.marked = collected.marked;
    row.marked_samples = collected.marked_samples;
    return row;
}

VisibleRow measure(Node& node, const VisibleConfig& config, const SamplePolicy& policy,
                   const ClockJudge& judge, Tally& tally) {
    const auto collected =
        collect<VisibleSample>(node, policy, judge, Beside::kNothing, tally,
                               [&](int samples) { return node.visible(config, samples); });
    return summarise(config, collected.samples);
}

GigaHertz settle_clock(Node& node, int producers, Beside beside, double warm_up_ms) {
    node.warm_up(warm_up_ms);
    StoreConfig config;
    config.producers = producers;
    config.bytes = 4096;
    config.beside = beside;
    std::vector<double> clocks;
    for (const StoreSample& sample : node.store(config, 20)) {
        if (const auto clock = clock_of(sample)) clocks.push_back(clock->value());
    }
    if (clocks.empty()) {
        throw Error(ErrorKind::kEnvironment, "the SM clock could not be told from any sample");
    }
    return GigaHertz{median(clocks)};
}

}  // namespace xstage::probe
