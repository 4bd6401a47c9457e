#pragma once

#include <cstdint>
#include <functional>

#include "probe/clock_judge.hpp"
#include "probe/node.hpp"

namespace xstage::probe {

/// How many samples a configuration gets, and how often marked ones are taken again.
struct SamplePolicy {
    int samples = 15;
    int retries = 3;
    double warm_up_ms = 5;  ///< before each retry
};

/// Marked samples are counted where they were taken, also when a retry replaced them.
struct Tally {
    std::int64_t taken = 0;
    std::int64_t marked = 0;
    std::int64_t rows = 0;
    std::int64_t marked_rows = 0;  ///< still short of good samples after the retries

    double marked_share() const {
        return taken == 0 ? 0 : static_cast<double>(marked) / static_cast<double>(taken);
    }
};

/// Measures one configuration. Samples taken under another clock or under throttling are marked and
/// taken again, at most policy.retries times. A row with enough good samples is made of those
/// alone; otherwise of all, and says so by `marked`. No sample vanishes: `tally` and the row's
/// marked_samples count every one that was marked.
BurstRow measure(Node& node, const StoreConfig& config, const SamplePolicy& policy,
                 const ClockJudge& judge, Tally& tally);
VisibleRow measure(Node& node, const VisibleConfig& config, const SamplePolicy& policy,
                   const ClockJudge& judge, Tally& tally);

/// The clock that the node holds with this work beside: median over the samples of a small burst,
/// after `warm_up_ms`. Throws kEnvironment if no sample tells one.
GigaHertz settle_clock(Node& node, int producers, Beside beside, double warm_up_ms);

}  // namespace xstage::probe
