#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "probe/plan.hpp"
#include "probe/watchdog.hpp"

namespace xstage::probe {

struct ProbeOptions {
    bool loopback = false;
    bool quick = false;
    bool litmus = false;
    std::int64_t litmus_trials = 10'000'000;
    int samples = 0;  ///< 0: the plan's own
    Axes axes;
    std::vector<std::string> filters;
    std::string output = "measurements.json";
    std::string node_name;  ///< empty: the host's name
    std::string base;       ///< document to compare with; empty: none
    std::string hang_in;    ///< phase in which to hang on purpose, to try the watchdog
    std::vector<std::string> argv;
    std::string git_commit;
    bool json = false;      ///< the document on standard output instead of the summary
    bool terminal = false;  ///< standard error is one
};

using OpenNode = std::function<std::unique_ptr<Node>(const NodeOptions&)>;

/// The whole command in the watched process: opens the node, tests every ordered pair, measures
/// with the first that passes, writes the document and prints a summary. Returns the exit code: 0,
/// 1 if a check failed (lost bytes, stale reads, too many marked samples, slower than the base), 3
/// without a working pair, 130 when interrupted.
int run_probe(const ProbeOptions& options, const OpenNode& open, Heartbeat& heartbeat);

/// Compares two documents and prints the verdict. Returns 0, or 1 if `now` is slower.
int print_comparison(const Measurements& base, const Measurements& now, std::FILE* out);

/// What the document says in a dozen lines.
void print_summary(const Measurements& document, std::FILE* out);

}  // namespace xstage::probe
