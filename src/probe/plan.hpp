#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "probe/node.hpp"

namespace xstage::probe {

/// Axes a user gave in place of the plan's own; empty: the plan's.
struct Axes {
    std::vector<std::int64_t> bytes, sms, warps, gaps;
    std::vector<std::string> paths;
};

struct PlanOptions {
    int sms = 132;          ///< of the sender
    int peers = 1;          ///< GPUs it can store to
    bool loopback = false;  ///< no second GPU: no other direction
    bool quick = false;     ///< a coarse grid for under 10 s
    bool litmus = false;    ///< the ordering tests and nothing else
    std::int64_t litmus_trials = 10'000'000;
    Axes axes = {};
};

/// SMs by id that store, for the issue time of each.
struct SmCase {
    std::string name;
    StoreConfig config;
};

using Work = std::variant<StoreConfig, VisibleConfig, SmCase, RateConfig, LitmusConfig>;

struct Step {
    std::string phase;  ///< what the progress line, --filter section= and the watchdog call it
    Work work;
    double estimate_ns = 0;  ///< for one pass, the probe's own overheads included
};

/// What is to be measured, in order: most wanted first, so that an interrupted run is of use.
std::vector<Step> make_plan(const PlanOptions& options);

/// Time that `samples` rounds of this configuration are expected to take, from a link of `rate`
/// GB/s and the launch overheads; only the progress line depends on it.
double estimate_ns(const StoreConfig& config, int samples, double rate);

/// Names as documents have them; used by filters and messages.
std::string describe(const Step& step);
std::string fence_name(LitmusFence fence);

/// Does the memory model (PTX ISA, memory consistency) ask for at least this between stores of this
/// path and a flag that another GPU acquires? True for the weakest sufficient forms and those
/// stronger; a row for which this is false is broken even if nothing stale is seen.
bool formally_sufficient(const std::string& path, LitmusFence fence);

}  // namespace xstage::probe
