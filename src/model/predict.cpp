#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/cases.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace xstage::model {
namespace {

constexpr std::size_t kLongSequence = 10'000;  // bursts
constexpr double kWithin = 1.05;               // "free" and "recovered" both mean within 5%
constexpr double kGapResolution = 5;           // cycles, below what a stamp tells

[[noreturn]] void reject(const std::string& field, const std::string& expected) {
    throw Error(ErrorKind::kBadInput, field + ": " + expected);
}

void require(bool good, const char* field, const char* expected) {
    if (!good) reject(field, expected);
}

Load load_of(const Scenario& s, const Profile& profile) {
    require(s.producers >= 1, "producers", "expected at least 1");
    require(profile.topology.sms == 0 || s.producers <= profile.topology.sms, "producers",
            "more than the SMs of the profiled GPU");
    require(s.warps >= 1 && s.warps <= 64, "warps", "expected 1 to 64");
    require(s.destinations >= 1, "destinations", "expected at least 1");
    const GigaHertz clock = s.clock.value_or(profile.clock);
    require(clock.value() > 0 && std::isfinite(clock.value()), "clock_ghz",
            "expected a positive number");
    // A producer counts its gap as it did when it was recorded.
    const bool apart = s.gap_from == GapFrom::kProducer && profile.path(s.path).warps_apart;
    return {s.producers, s.warps, clock, apart ? GapFrom::kWarp : s.gap_from};
}

Case case_of(const Scenario& s, const Profile& profile, Bytes bytes, int bursts) {
    Case c;
    const StorePath& path = profile.path(s.path);
    c.path = static_cast<std::size_t>(&path - profile.paths.data());
    c.load = load_of(s, profile);
    c.bytes = bytes;
    c.bursts = bursts;
    return c;
}

std::optional<double> held_out_p90(const Profile& profile, const std::string& path) {
    for (const ErrorLine& line : profile.held_out) {
        if (line.what == "isolated" && line.path == path && line.producers == 0 &&
            line.statistic == "slowest") {
            return line.p90;
        }
    }
    return std::nullopt;
}

}  // namespace

Bytes onset(const Profile& profile, const Scenario& load) {
    Simulator simulate(profile);
    const auto stalls = [&](double bytes) {
        Case c = case_of(load, profile, Bytes{bytes}, 1);
        const StorePath& path = profile.paths[c.path];
        const double free =
            fluid_burst(profile.network, path, c.load, c.bytes, Cycles{}, true).issue;
        return simulate(c)[kFirstSlowest] > kWithin * free;
    };
    constexpr double kLargest = 1073741824;  // a burst that never stalls has no onset below this
    double low = 0, high = 1024;
    while (high < kLargest && !stalls(high)) low = high, high *= 2;
    if (high >= kLargest) return Bytes{kLargest};
    while (high - low > 64) {
        const double middle = (low + high) / 2;
        (stalls(middle) ? high : low) = middle;
    }
    return Bytes{low};
}

Nanoseconds recovery_gap(const Profile& profile, const Scenario& load, Bytes bytes, bool slowest) {
    Case c = case_of(load, profile, bytes, 2);
    Simulator simulate(profile);
    const int what = slowest ? kLastSlowest : kLast;
    const StorePath& path = profile.path(load.path);
    const double all = bytes.value() * load.producers * path.wire * path.link_cost;
    const double longest = 4 * (all / profile.network.drain.value() * c.load.clock.value()) + 1e5;
    const auto second = [&](double gap) {
        c.gap = Cycles{gap};
        return simulate(c)[what];
    };
    const double plateau = second(longest);
    double low = 0, high = longest;
    if (second(0) <= kWithin * plateau) return Nanoseconds{0};
    while (high - low > kGapResolution) {
        const double middle = (low + high) / 2;
        (second(middle) <= kWithin * plateau ? high : low) = middle;
    }
    return Cycles{high} / c.load.clock;
}

namespace {

std::vector<FluidBurst> fluid_bursts(const Scenario& scenario, const Profile& profile,
                                     const Load& load) {
    const StorePath& path = profile.path(scenario.path);
    require(!scenario.bursts.empty(), "bursts", "expected at least one");
    std::vector<FluidBurst> bursts;
    bursts.reserve(scenario.bursts.size());
    for (std::size_t i = 0; i < scenario.bursts.size(); ++i) {
        const ScenarioBurst& b = scenario.bursts[i];
        const double bytes = b.bytes_per_producer.value(), gap = b.gap.value();
        if (!(bytes > 0) || !std::isfinite(bytes)) {
            reject(fmt::format("bursts[{}].bytes_per_producer", i), "expected a positive number");
        }
        if (!(gap >= 0) || !std::isfinite(gap)) {
            reject(fmt::format("bursts[{}].gap_ns", i), "expected a number not below zero");
        }
        bursts.push_back(fluid_burst(profile.network, path, load, b.bytes_per_producer,
                                     b.gap * load.clock, i == 0));
    }
    return bursts;
}

}  // namespace

Prediction predict(const Scenario& scenario, const Profile& profile) {
    const StorePath& path = profile.path(scenario.path);
    const Load load = load_of(scenario, profile);
    const std::vector<FluidBurst> bursts = fluid_bursts(scenario, profile, load);
    Network network = profile.network;
    // Luck averages out over a long sequence, and costs three times as much.
    if (bursts.size() > kLongSequence) network.turn = Bytes{0};
    const FluidModel model = fluid_model(network, profile.topology, path, load);
    const FluidResult result = run_fluid(model, bursts);

    Prediction out;
    out.bursts.reserve(bursts.size());
    const auto ns = [&](double cycles) { return Cycles{cycles} / load.clock; };
    for (std::size_t j = 0; j < bursts.size(); ++j) {
        const double slowest = result.slowest[j];
        BurstPrediction b;
        b.issue = ns(slowest);
        b.issue_median = ns(std::min<double>(slowest, result.median[j]));
        b.stall = positive_part(ns(slowest - bursts[j].issue));
        b.drained = ns(result.drained[j] - result.begun[j]);
        if (profile.visibility.echo) b.visible = b.drained + *profile.visibility.echo;
        b.queued = Bytes{result.queued[j] / path.wire};
        out.bursts.push_back(b);
    }
    out.total = ns(result.finished + path.finish.value());
    out.total_median = ns(result.finished_median + path.finish.value());
    out.onset = onset(profile, scenario);
    out.recovery = recovery_gap(profile, scenario, scenario.bursts.front().bytes_per_producer);
    if (const auto error = held_out_p90(profile, scenario.path)) {
        const double t = out.bursts.front().issue.value();
        out.issue = Interval{t / (1 + *error), t * (1 + *error)};
    }
    return out;
}

std::vector<std::pair<Nanoseconds, Bytes>> occupancy(const Scenario& scenario,
                                                     const Profile& profile) {
    const Load load = load_of(scenario, profile);
    const StorePath& path = profile.path(scenario.path);
    const FluidModel model = fluid_model(profile.network, profile.topology, path, load);
    FluidTrace trace;
    run_fluid(model, fluid_bursts(scenario, profile, load), &trace);
    std::vector<std::pair<Nanoseconds, Bytes>> out{{Nanoseconds{}, Bytes{}}};
    for (const auto& [cycles, bytes] : trace.occupancy) {
        out.emplace_back(Cycles{cycles} / load.clock, Bytes{bytes / path.wire});
    }
    return out;
}

}  // namespace xstage::model
