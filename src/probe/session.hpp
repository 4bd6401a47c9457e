#pragma once

#include <functional>
#include <string>
#include <vector>

#include "probe/plan.hpp"
#include "probe/progress.hpp"
#include "probe/sampler.hpp"
#include "xstage/measurement.hpp"

namespace xstage::probe {

struct SessionHooks {
    std::function<bool()> interrupted = [] { return false; };
    /// Called before each step with its phase and the time within which it must be over.
    std::function<void(const std::string& phase, double limit_ns)> enter = [](auto&&, auto&&) {};
    /// Called with the document so far, at least about once a second and after each phase.
    std::function<void(const Measurements&)> save = [](auto&&) {};
    Progress* progress = nullptr;
    double save_every_ns = 1e9;
};

struct SessionResult {
    Tally tally;
    int failed_checks = 0;  ///< bytes that did not arrive, stale reads under a sufficient fence
    bool interrupted = false;
};

/// Runs the steps on `node` and adds their rows to `document`. A configuration that the node cannot
/// do is skipped and its reason kept in the document's warnings. A step that fails a check is kept
/// there too, and the run goes on; a wait that ran out or a broken device ends it: the document is
/// saved and the error thrown on.
SessionResult run_session(Node& node, const std::vector<Step>& steps, const SamplePolicy& policy,
                          const ClockJudge& judge, const SessionHooks& hooks,
                          Measurements& document);

/// Adds a warning for each remote row whose bytes over its drain time exceed the line rate: an
/// accounting error (bytes merged before the link, or bytes that never went there), not a rate.
void flag_impossible_rates(Measurements& document);

/// Above this share of marked samples the measurement counts as failed.
inline constexpr double kMostMarked = 0.05;

}  // namespace xstage::probe
