#include "trace/report_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trace/svg.hpp"

namespace xstage::trace {
namespace {

using model::Profile;
using model::Scenario;

std::string kib(double bytes) {
    return fmt::format("{:.4g} KB", bytes / 1024);
}

GigaHertz clock_of(const BurstRow& row, const Profile& profile) {
    return row.clock.value_or(profile.clock);
}

bool plain(const BurstRow& row) {
    return !row.both_directions && row.destinations == 1 && row.addresses == Addresses::kFresh &&
           row.beside == "nothing";
}

bool covered(const BurstRow& row, const Profile& profile) {
    return plain(row) && row.target == Target::kRemote &&
           std::any_of(profile.paths.begin(), profile.paths.end(),
                       [&](const model::StorePath& path) { return path.name == row.path; });
}

Scenario scenario_of(const BurstRow& row, const Profile& profile) {
    Scenario out;
    out.path = row.path;
    out.producers = row.producers;
    out.warps = row.warps;
    out.clock = clock_of(row, profile);
    out.gap_from = row.gap_from;
    out.bursts.assign(static_cast<std::size_t>(row.bursts),
                      {row.bytes_per_producer, row.gap / *out.clock});
    return out;
}

/// Sizes from 1 KB to 1 MB, four to each doubling: smooth enough for a curve.
std::vector<double> sizes(double low, double high) {
    std::vector<double> out;
    for (double bytes = low; bytes <= high * 1.001; bytes *= std::exp2(0.25)) out.push_back(bytes);
    return out;
}

Scenario bursts_of(const Scenario& load, int count, double bytes, double gap_ns) {
    Scenario out = load;
    out.bursts.assign(static_cast<std::size_t>(count), {Bytes{bytes}, Nanoseconds{gap_ns}});
    return out;
}

/// At most `most` of the sorted values, the first and the last among them.
template <class T>
std::vector<T> spread_out(const std::set<T>& all, std::size_t most) {
    const std::vector<T> values(all.begin(), all.end());
    if (values.size() <= most) return values;
    std::vector<T> out;
    for (std::size_t i = 0; i < most; ++i)
        out.push_back(values[i * (values.size() - 1) / (most - 1)]);
    return out;
}

}  // namespace

Scenario typical_load(const Measurements& measurements, const Profile& profile) {
    Scenario load;
    load.path = profile.paths.front().name;
    load.producers = 0;
    std::map<int, int> warps;
    for (const BurstRow& row : measurements.bursts) {
        if (row.path != load.path || row.target != Target::kRemote) continue;
        load.producers = std::max(load.producers, row.producers);
        ++warps[row.warps];
    }
    const auto most =
        std::max_element(warps.begin(), warps.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != warps.end()) load.warps = most->first;
    load.producers = std::max(load.producers, 1);
    load.clock = profile.clock;
    return load;
}

PageFigure issue_figure(const Measurements& measurements, const Profile& profile,
                        const Scenario& load) {
    std::map<int, Points> recorded;
    Points local;
    for (const BurstRow& row : measurements.bursts) {
        if (row.mode != BurstMode::kIsolated || row.path != load.path || row.warps != load.warps ||
            !plain(row)) {
            continue;
        }
        const double ns = (row.issue.front().cycles.max / clock_of(row, profile)).value();
        if (row.target == Target::kRemote) {
            recorded[row.producers].emplace_back(row.bytes_per_producer.value(), ns);
        } else if (row.producers == load.producers) {
            local.emplace_back(row.bytes_per_producer.value(), ns);
        }
    }
    std::set<int> counts;
    double low = INFINITY, high = 0;
    for (const auto& [producers, points] : recorded) {
        counts.insert(producers);
        for (const auto& [bytes, ns] : points)
            low = std::min(low, bytes), high = std::max(high, bytes);
    }
    Chart chart("Issue time of one burst against its size", {"bytes per SM", Scale::kLog2Bytes},
                {"issue time, slowest SM (ns)", Scale::kLog10});
    int colour = 0;
    for (const int producers : spread_out(counts, 4)) {
        Scenario at = load;
        at.producers = producers;
        Points line;
        for (const double bytes : sizes(low, high)) {
            line.emplace_back(bytes,
                              predict(bursts_of(at, 1, bytes, 0), profile).bursts[0].issue.value());
        }
        chart.dots(recorded[producers], colour)
            .line(std::move(line), colour,
                  fmt::format("{} SM{}", producers, producers == 1 ? "" : "s"));
        ++colour;
    }
    chart.dots(std::move(local), 4, fmt::format("{} SMs, local memory", load.producers));
    const Bytes knee = onset(profile, load);
    chart.mark_x(knee.value(), fmt::format("onset {}", kib(knee.value())));
    return {
        "How much may be stored before it stalls", chart.svg(),
        fmt::format(
            "Dots are recorded, lines predicted ({}, {} warps per SM). Up to the onset a burst is "
            "issued as fast as to local memory; beyond it the SM waits for the link.",
            load.path, load.warps)};
}

PageFigure second_burst_figure(const Measurements& measurements, const Profile& profile,
                               const Scenario& load) {
    std::map<double, Points> recorded;
    double longest = 0;
    for (const BurstRow& row : measurements.bursts) {
        if (row.mode != BurstMode::kGap2 || row.path != load.path || row.warps != load.warps ||
            row.producers != load.producers || row.gap_from == GapFrom::kAll ||
            !covered(row, profile) || row.issue.size() < 2) {
            continue;
        }
        const GigaHertz clock = clock_of(row, profile);
        const double gap = (row.gap / clock).value();
        longest = std::max(longest, gap);
        recorded[row.bytes_per_producer.value()].emplace_back(
            gap, (row.issue.back().cycles.p50 / clock).value());
    }
    std::set<double> all;
    for (const auto& entry : recorded) all.insert(entry.first);
    Chart chart("Issue time of the second of two bursts against the gap between them", {"gap (ns)"},
                {"second burst, median SM (ns)", Scale::kLog10});
    int colour = 0;
    std::string recoveries;
    for (const double bytes : spread_out(all, 4)) {
        Points line;
        for (int i = 0; i <= 80; ++i) {
            const double gap = longest * i / 80;
            line.emplace_back(
                gap,
                predict(bursts_of(load, 2, bytes, gap), profile).bursts[1].issue_median.value());
        }
        chart.dots(recorded[bytes], colour).line(std::move(line), colour, kib(bytes));
        recoveries +=
            fmt::format("{}{} after {:.1f} us", recoveries.empty() ? "" : ", ", kib(bytes),
                        recovery_gap(profile, load, Bytes{bytes}, false).value() / 1000);
        ++colour;
    }
    return {"How long to compute before storing again", chart.svg(),
            recoveries.empty()
                ? "No rows with two bursts were recorded."
                : "Predicted recovery, median SM: " + recoveries +
                      ". The sooner the second burst comes, the more of the first is still in "
                      "the room."};
}

PageFigure occupancy_figure(const Profile& profile, const Scenario& sequence) {
    Points points;
    for (const auto& [at, bytes] : occupancy(sequence, profile))
        points.emplace_back(at.value(), bytes.value());
    const model::Prediction prediction = predict(sequence, profile);
    double stalled = 0;
    for (const auto& burst : prediction.bursts) stalled += burst.stall.value();
    Chart chart("Bytes accepted and not yet drained over time", {"time (ns)"}, {"bytes in flight"});
    chart.line(std::move(points), 0);
    return {
        "What is in flight", chart.svg(),
        fmt::format("{} bursts of {} per SM from {} SMs, gaps of {:.1f} us: issued after {:.1f} "
                    "us, of which "
                    "the slowest SM stalls {:.1f} us.",
                    sequence.bursts.size(), kib(sequence.bursts.front().bytes_per_producer.value()),
                    sequence.producers, sequence.bursts.front().gap.value() / 1000,
                    prediction.total.value() / 1000, stalled / 1000)};
}

PageFigure onset_map_figure(const Profile& profile, const Scenario& load) {
    constexpr int kBursts = 4;
    const double gap_top = 1.5 * recovery_gap(profile, load, Bytes{65536}).value();
    const double gap_step = std::max(gap_top, 1000.0) / 12;
    Chart chart("Stall of equal bursts over burst size and gap",
                {"bytes per SM and burst", Scale::kLog2Bytes}, {"gap (ns)"});
    for (double bytes = 4096; bytes < 262144; bytes *= std::exp2(0.5)) {
        for (int row = 0; row < 12; ++row) {
            const double gap = (row + 0.5) * gap_step;
            const auto prediction =
                predict(bursts_of(load, kBursts, bytes * std::exp2(0.25), gap), profile);
            const auto& last = prediction.bursts.back();
            // The share of the period that the last burst spends stalled: what a kernel would lose.
            const double share = last.stall.value() / (last.issue.value() + gap);
            chart.cell(bytes, bytes * std::exp2(0.5), row * gap_step, (row + 1) * gap_step, share,
                       fmt::format("{}, gap {:.1f} us: {:.0f}% stalled",
                                   kib(bytes * std::exp2(0.25)), gap / 1000, 100 * share));
        }
    }
    return {
        "Where it stalls", chart.svg(),
        fmt::format(
            "Predicted for the last of {} equal bursts, {} SMs, slowest SM: the darker, the larger "
            "the share of time lost. White is free.",
            kBursts, load.producers)};
}

std::vector<Comparison> compare(const Measurements& measurements, const Profile& profile) {
    std::vector<Comparison> out;
    for (const BurstRow& row : measurements.bursts) {
        if (!covered(row, profile) || row.marked || row.mode == BurstMode::kPeriodic) continue;
        const Scenario scenario = scenario_of(row, profile);
        const auto prediction = predict(scenario, profile);
        const BurstIssue& issue = row.issue.back();
        Comparison entry{(issue.cycles.max / *scenario.clock).value(),
                         prediction.bursts.at(static_cast<std::size_t>(issue.burst)).issue.value(),
                         std::nullopt};
        for (std::size_t i = 0; i < profile.simple.size() && i < profile.paths.size(); ++i) {
            if (profile.paths[i].name != row.path || row.mode != BurstMode::kIsolated) continue;
            entry.simple =
                isolated_issue(profile.simple[i], row.bytes_per_producer * row.producers).value();
        }
        out.push_back(entry);
    }
    return out;
}

PageFigure scatter_figure(const std::vector<Comparison>& comparisons) {
    Points points;
    double low = INFINITY, high = 0;
    for (const Comparison& entry : comparisons) {
        points.emplace_back(entry.recorded, entry.hierarchical);
        low = std::min({low, entry.recorded, entry.hierarchical});
        high = std::max({high, entry.recorded, entry.hierarchical});
    }
    Chart chart("Predicted against recorded issue time", {"recorded (ns)", Scale::kLog10},
                {"predicted (ns)", Scale::kLog10});
    chart.dots(std::move(points), 0);
    if (low < high) {
        chart.line({{low, low}, {high, high}}, 4, "equal")
            .line({{low, low * 1.15}, {high, high * 1.15}}, 4, "15% off", true)
            .line({{low, low / 1.15}, {high, high / 1.15}}, 4, "", true);
    }
    return {
        "Prediction against measurement", chart.svg(),
        fmt::format(
            "{} isolated and second bursts, slowest SM, every recorded SM count and warp count.",
            comparisons.size())};
}

PageFigure error_figure(const std::vector<Comparison>& comparisons) {
    std::vector<double> hierarchical, simple;
    for (const Comparison& entry : comparisons) {
        hierarchical.push_back(std::abs(entry.hierarchical / entry.recorded - 1));
        if (entry.simple) simple.push_back(std::abs(*entry.simple / entry.recorded - 1));
    }
    const auto distribution = [](std::vector<double> errors) {
        std::sort(errors.begin(), errors.end());
        Points points;
        for (std::size_t i = 0; i < errors.size() && errors[i] <= 0.6; ++i) {
            points.emplace_back(100 * errors[i], 100 * static_cast<double>(i + 1) /
                                                     static_cast<double>(errors.size()));
        }
        return points;
    };
    Chart chart("Distribution of the prediction's errors", {"error of at most (%)"},
                {"share of rows (%)"});
    chart.y_range(0, 100).line(distribution(hierarchical), 0, "hierarchical");
    if (!simple.empty()) chart.line(distribution(simple), 1, "three parameters", true);
    return {"How far off", chart.svg(),
            "Over the rows of the figure before; the three-parameter model speaks of isolated "
            "bursts only. The table below gives the errors on held-out rows."};
}

}  // namespace xstage::trace
