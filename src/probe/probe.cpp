#include "probe/probe.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "core/file.hpp"
#include "core/json.hpp"
#include "probe/filter.hpp"
#include "probe/session.hpp"
#include "trace/measurement_json.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

namespace xstage::probe {
namespace {

using std::chrono::milliseconds;

constexpr int kInterruptedExit = 130;  // as a shell reports SIGINT

/// Tells the watchdog; hangs here if that was asked for.
void enter(Heartbeat& heartbeat, const ProbeOptions& options, const std::string& phase,
           milliseconds limit) {
    if (phase == options.hang_in) {
        heartbeat.phase(phase, milliseconds(100));
        for (;;) pause();
    }
    heartbeat.phase(phase, limit);
}

Provenance provenance_of(const Node& node, const ProbeOptions& options) {
    const NodeInfo info = node.info();
    Provenance out;
    out.node = options.node_name.empty() ? info.hostname : options.node_name;
    out.gpus = info.gpus;
    out.driver = info.driver;
    out.cuda = info.cuda;
    out.topology = info.topology;
    out.tool_version = kVersion;
    out.git_commit = options.git_commit;
    out.argv = options.argv;
    out.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    out.loopback = options.loopback;
    if (info.line_rate > 0) out.line_rate = BytesPerNanosecond{info.line_rate};
    out.warnings = info.warnings;
    return out;
}

/// The first pair that works. Throws kUnsupported, naming every failure, if none does.
PairCheck choose_pair(const std::vector<PairCheck>& checks, Provenance& provenance) {
    std::string failures;
    for (const PairCheck& check : checks) {
        if (check.ok) continue;
        const std::string what = fmt::format("GPU {} to GPU {} failed its self-test: {}",
                                             check.from, check.to, check.reason);
        fmt::print(stderr, "probe: {}\n", what);
        provenance.warnings.push_back(what);
        failures += (failures.empty() ? "" : "; ") + what;
    }
    const auto good =
        std::find_if(checks.begin(), checks.end(), [](const PairCheck& check) { return check.ok; });
    if (good == checks.end()) {
        throw Error(ErrorKind::kUnsupported, "no working pair of GPUs: " + failures);
    }
    return *good;
}

/// References of the works beside that the plan has.
void settle_beside(Node& node, int sms, const std::vector<Step>& steps, ClockJudge& judge) {
    for (const Beside beside : {Beside::kMma, Beside::kMemory, Beside::kShared}) {
        const bool wanted = std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
            const auto* config = std::get_if<StoreConfig>(&step.work);
            return config != nullptr && config->beside == beside;
        });
        if (wanted) judge.hold(beside, settle_clock(node, sms, beside, 5));
    }
}

double total_estimate(const std::vector<Step>& steps) {
    double total = 0;
    for (const Step& step : steps) total += step.estimate_ns;
    return total;
}

}  // namespace

int run_probe(const ProbeOptions& options, const OpenNode& open, Heartbeat& heartbeat) {
    const Filter filter(options.filters);
    Measurements base;
    if (!options.base.empty()) base = read_measurements(options.base);

    enter(heartbeat, options, "open", milliseconds(60'000));
    const std::unique_ptr<Node> node = open({.loopback = options.loopback, .from = 0, .to = 1});
    Measurements document;
    document.provenance = provenance_of(*node, options);

    enter(heartbeat, options, "self-test", milliseconds(60'000));
    const auto checks = node->self_test();
    const PairCheck pair = choose_pair(checks, document.provenance);

    enter(heartbeat, options, "prepare", milliseconds(60'000));
    node->use_pair(pair.from, pair.to);
    const Gpu& sender = document.provenance.gpus.at(static_cast<std::size_t>(pair.from));
    ClockJudge judge(settle_clock(*node, sender.sms, Beside::kNothing, 40));
    if (sender.max_clock && judge.reference().value() < 0.95 * sender.max_clock->value()) {
        document.provenance.warnings.push_back(
            fmt::format("the SM clock settled at {:.3f} GHz, the GPU's maximum is {:.3f}",
                        judge.reference().value(), sender.max_clock->value()));
    }

    PlanOptions plan_options;
    plan_options.sms = sender.sms;
    plan_options.peers = std::max(1, static_cast<int>(document.provenance.gpus.size()) - 1);
    plan_options.loopback = options.loopback;
    plan_options.quick = options.quick;
    plan_options.litmus = options.litmus;
    plan_options.litmus_trials = options.litmus_trials;
    plan_options.axes = options.axes;
    std::vector<Step> steps = make_plan(plan_options);
    std::erase_if(steps, [&](const Step& step) { return !filter.accepts(step); });
    settle_beside(*node, sender.sms, steps, judge);
    if (steps.empty()) {
        throw Error(ErrorKind::kBadInput, "the filters and axes leave nothing to measure");
    }

    SamplePolicy policy;
    policy.samples = options.samples > 0 ? options.samples : options.quick ? 5 : 15;
    Progress progress(total_estimate(steps), options.terminal, stderr);
    SessionHooks hooks;
    hooks.interrupted = [] { return interrupted(); };
    hooks.enter = [&](const std::string& phase, double limit_ns) {
        enter(heartbeat, options, phase, milliseconds(static_cast<std::int64_t>(limit_ns / 1e6)));
    };
    hooks.save = [&](const Measurements& partial) {
        core::write_file_atomic(options.output, core::dump_json(trace::to_json(partial)));
    };
    hooks.progress = &progress;
    hooks.save(document);  // an unwritable place is found before a minute of measuring
    const SessionResult result = run_session(*node, steps, policy, judge, hooks, document);
    progress.end();

    enter(heartbeat, options, "report", milliseconds(60'000));
    fmt::print(
        stderr,
        "probe: {} rows; {} of {} samples marked ({:.2f}%), {} rows still marked after retries\n",
        result.tally.rows, result.tally.marked, result.tally.taken,
        100 * result.tally.marked_share(), result.tally.marked_rows);
    for (const std::string& warning : document.provenance.warnings) {
        fmt::print(stderr, "probe: warning: {}\n", warning);
    }
    if (options.json) {
        fmt::print("{}", core::dump_json(trace::to_json(document)));
    } else {
        print_summary(document, stdout);
    }
    int code = 0;
    if (!options.base.empty())
        code = print_comparison(base, document, options.json ? stderr : stdout);
    if (result.failed_checks > 0 || result.tally.marked_share() > kMostMarked) code = 1;
    return result.interrupted ? kInterruptedExit : code;
}

}  // namespace xstage::probe
