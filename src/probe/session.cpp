#include "probe/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "probe/statistics.hpp"
#include "trace/enum_names.hpp"
#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

using Clock = std::chrono::steady_clock;

/// Generous: a step's own waits are bounded well below this.
double limit_for(const Step& step) {
    return 45e9 + 20 * step.estimate_ns;
}

class Runner {
  public:
    Runner(Node& node, const SamplePolicy& policy, const ClockJudge& judge, SessionResult& result,
           Measurements& document)
        : node_(node), policy_(policy), judge_(judge), result_(result), document_(document) {}

    void operator()(const StoreConfig& config) {
        std::string why_not;
        if (!node_.supports(config, why_not)) {
            ++skipped_[why_not];
            return;
        }
        document_.bursts.push_back(measure(node_, config, policy_, judge_, result_.tally));
    }

    void operator()(const VisibleConfig& config) {
        const VisibleRow row = measure(node_, config, policy_, judge_, result_.tally);
        if (config.bytes == 0) {
            document_.flag_round_trip = {row.echo, row.echo_ns};
            return;
        }
        document_.visible.push_back(row);
        if (row.stale_words > 0) {
            fail(fmt::format(
                "{} stale words read after a formally sufficient fence: {} {} SMs x {} B",
                row.stale_words, row.path, row.producers, row.bytes_per_producer.value()));
        }
    }

    void operator()(const SmCase& sm) {
        std::string why_not;
        if (!node_.supports(sm.config, why_not)) {
            ++skipped_[why_not];
            return;
        }
        // By SM id the slowest warp of each, median over the samples.
        std::map<int, std::vector<double>> slowest;
        for (const StoreSample& sample : node_.store(sm.config, policy_.samples)) {
            std::map<int, double> of_sample;
            for (std::size_t w = 0; w < sample.sm.size(); ++w) {
                double& time = of_sample[sample.sm[w]];
                time = std::max(time, sample.issue.front()[w]);
            }
            for (const auto& [id, time] : of_sample) slowest[id].push_back(time);
        }
        SmRow row{sm.name,
                  sm.config.path,
                  sm.config.warps,
                  Bytes{static_cast<double>(sm.config.bytes)},
                  {}};
        row.issue.resize(sm.config.sm_mask.size());
        for (const auto& [id, times] : slowest) {
            const auto at = static_cast<std::size_t>(id);
            if (at >= row.issue.size()) row.issue.resize(at + 1);
            row.issue[at] = Cycles{median(times)};
        }
        document_.per_sm.push_back(std::move(row));
        if (document_.sm_groups.empty()) document_.sm_groups = node_.sm_groups();
    }

    void operator()(const RateConfig& config) {
        std::vector<double> rates;
        std::int64_t bytes = 0, counted = 0;
        bool all_counted = true;
        const bool is_loop = config.engine == "store_loop" || config.engine == "local_store_loop";
        for (int repeat = 0; repeat < 3; ++repeat) {
            const RateSample sample = is_loop ? loop_rate(config) : node_.rate(config);
            bytes += sample.bytes;
            counted += sample.counted_bytes;
            all_counted = all_counted && sample.counted_bytes > 0;
            rates.push_back(static_cast<double>(sample.bytes) / sample.ns);
        }
        RateRow row;
        row.engine = config.engine;
        row.direction = config.direction;
        row.bytes = Bytes{static_cast<double>(bytes)};
        row.rate = BytesPerNanosecond{median(rates)};
        row.counting =
            fmt::format("payload bytes, {} memory, {}, over {}; median of 3",
                        config.target == Target::kLocal ? "local" : "peer",
                        config.direction == "both" ? "both directions together" : "one direction",
                        is_loop ? "the slowest SM's time from start to the end of its fence"
                                : "the time between events on the issuing stream(s)");
        if (all_counted) row.counted = Bytes{static_cast<double>(counted)};
        document_.rates.push_back(std::move(row));
    }

    /// The store loop itself, as a plain rate: all SMs, bursts of 1 MiB without a gap, four warps.
    RateSample loop_rate(const RateConfig& config) {
        StoreConfig loop;
        loop.mode = BurstMode::kPeriodic;
        loop.target = config.target;
        loop.producers = document_.provenance.gpus.front().sms;
        loop.bytes = std::int64_t{1} << 20;
        loop.bursts = static_cast<int>(
            std::clamp<std::int64_t>(config.bytes / loop.bytes / loop.producers, 1, 16));
        const StoreSample sample = node_.store(loop, 1).front();
        const double slowest = *std::max_element(sample.fence.begin(), sample.fence.end());
        return {.ns = slowest * sample.window_ns / sample.window_cycles,
                .bytes = loop.bytes * loop.producers * loop.bursts};
    }

    void operator()(const LitmusConfig& config) {
        const LitmusCount count = node_.litmus(config);
        LitmusRow row;
        row.path = config.path;
        row.fence = fence_name(config.fence);
        row.load = config.loaded ? "loaded" : "idle";
        row.formally_required = formally_sufficient(config.path, config.fence);
        row.trials = count.trials;
        row.stale = count.stale_messages;
        document_.litmus.push_back(row);
        if (row.formally_required && row.stale > 0) {
            fail(fmt::format("{} of {} messages stale under {} by {} ({})", row.stale, row.trials,
                             row.fence, row.path, row.load));
        }
    }

    void fail(const std::string& what) {
        ++result_.failed_checks;
        document_.provenance.warnings.push_back(what);
    }

    void keep_reasons() {
        for (const auto& [reason, count] : skipped_) {
            document_.provenance.warnings.push_back(
                fmt::format("{} configuration(s) skipped: {}", count, reason));
        }
    }

  private:
    Node& node_;
    const SamplePolicy& policy_;
    const ClockJudge& judge_;
    SessionResult& result_;
    Measurements& document_;
    std::map<std::string, int> skipped_;
};

}  // namespace

SessionResult run_session(Node& node, const std::vector<Step>& steps, const SamplePolicy& policy,
                          const ClockJudge& judge, const SessionHooks& hooks,
                          Measurements& document) {
    SessionResult result;
    Runner runner(node, policy, judge, result, document);
    auto saved = Clock::now();
    const std::string* phase = nullptr;
    for (const Step& step : steps) {
        if (hooks.interrupted()) {
            result.interrupted = true;
            document.provenance.warnings.push_back("interrupted: the plan was not finished");
            break;
        }
        const double since = std::chrono::duration<double, std::nano>(Clock::now() - saved).count();
        if ((phase != nullptr && *phase != step.phase) || since > hooks.save_every_ns) {
            hooks.save(document);
            saved = Clock::now();
        }
        phase = &step.phase;
        hooks.enter(step.phase, limit_for(step));
        if (hooks.progress != nullptr) {
            hooks.progress->step(step.phase, describe(step), step.estimate_ns);
        }
        try {
            std::visit(runner, step.work);
        } catch (const Error& error) {
            const std::string what = fmt::format("{}: {}", describe(step), error.what());
            if (error.kind() == ErrorKind::kCheckFailed) {
                runner.fail(what);
                continue;
            }
            document.provenance.warnings.push_back(what);
            runner.keep_reasons();
            hooks.save(document);
            throw Error(error.kind(), what);
        }
    }
    runner.keep_reasons();
    flag_impossible_rates(document);
    hooks.save(document);
    return result;
}

void flag_impossible_rates(Measurements& document) {
    const auto line = document.provenance.line_rate;
    if (!line || document.provenance.loopback) return;
    for (const BurstRow& row : document.bursts) {
        if (row.target != Target::kRemote || !row.fence || !row.clock) continue;
        const Bytes bytes =
            row.bytes_per_producer * (static_cast<double>(row.producers) * row.bursts);
        // To the slowest SM's fence: when the median SM is done, others still have bytes to send.
        const BytesPerNanosecond rate = bytes / (row.fence->max / *row.clock);
        if (rate <= *line) continue;
        document.provenance.warnings.push_back(
            fmt::format("accounting error: {} {} {} of {} SMs x {} B ({} addresses) gives {:.0f} "
                        "GB/s over a line "
                        "of {:.0f}",
                        trace::enum_name(row.mode), row.path, "bursts", row.producers,
                        row.bytes_per_producer.value(), trace::enum_name(row.addresses),
                        rate.value(), line->value()));
    }
}

}  // namespace xstage::probe
