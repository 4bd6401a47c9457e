#include "probe/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace xstage::probe {
namespace {

template <class Items, class Get>
std::vector<double> column(const Items& items, Get get) {
    std::vector<double> values;
    values.reserve(items.size());
    for (const auto& item : items) values.push_back(get(item));
    return values;
}

const char* beside_name(Beside beside) {
    switch (beside) {
        case Beside::kMma:
            return "mma";
        case Beside::kMemory:
            return "memory";
        case Beside::kShared:
            return "shared";
        default:
            return "nothing";
    }
}

}  // namespace

double percentile(std::vector<double> values, double p) {
    std::sort(values.begin(), values.end());
    return percentile_of_sorted(values, p);
}

double percentile_of_sorted(const std::vector<double>& values, double p) {
    if (values.empty()) throw std::invalid_argument("percentile of nothing");
    const double rank = p / 100.0 * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(rank);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

double median(std::vector<double> values) {
    return percentile(std::move(values), 50);
}

double robust_deviation(const std::vector<double>& values) {
    if (values.size() < 2) return 0;
    const double middle = median(values);
    return 1.4826 * median(column(values, [&](double v) { return std::abs(v - middle); }));
}

Spread spread_of(std::vector<double> workers) {
    std::sort(workers.begin(), workers.end());
    const auto at = [&](double p) { return Cycles{percentile_of_sorted(workers, p)}; };
    return {at(5), at(50), at(95), at(100)};
}

Spread typical(const std::vector<Spread>& samples) {
    const auto of = [&](auto get) { return Cycles{median(column(samples, get))}; };
    return {of([](const Spread& s) { return s.p5->value(); }),
            of([](const Spread& s) { return s.p50.value(); }),
            of([](const Spread& s) { return s.p95->value(); }),
            of([](const Spread& s) { return s.max.value(); })};
}

BurstRow summarise(const StoreConfig& config, const std::vector<StoreSample>& samples) {
    BurstRow row;
    row.mode = config.mode;
    row.path = config.path;
    row.target = config.target;
    row.both_directions = config.both_directions;
    row.producers = config.producers;
    row.warps = config.warps;
    row.destinations = config.destinations;
    row.addresses = config.addresses;
    row.beside = beside_name(config.beside);
    row.bytes_per_producer = Bytes{static_cast<double>(config.bytes)};
    row.bursts = config.bursts;
    row.gap = Cycles{static_cast<double>(config.gap_cycles)};
    row.gap_from = config.gap_from;
    row.samples = static_cast<int>(samples.size());

    std::vector<Spread> totals, fences, posted;
    for (const StoreSample& sample : samples) {
        totals.push_back(spread_of(sample.total));
        fences.push_back(spread_of(sample.fence));
        if (!sample.posted.empty()) posted.push_back(spread_of(sample.posted.front()));
    }
    for (int burst = 0; burst < config.bursts; ++burst) {
        std::vector<Spread> issues;
        for (const StoreSample& sample : samples) {
            issues.push_back(spread_of(sample.issue.at(static_cast<std::size_t>(burst))));
        }
        row.issue.push_back({burst, typical(issues)});
    }
    row.total = typical(totals);
    row.fence = typical(fences);
    if (!posted.empty()) row.posted = typical(posted);
    const double elapsed =
        median(column(samples, [](const StoreSample& s) { return s.elapsed_ns; }));
    if (elapsed > 0) row.elapsed = Nanoseconds{elapsed};
    const auto slowest = column(totals, [](const Spread& s) { return s.max.value(); });
    if (samples.size() > 1 && median(slowest) > 0) {
        row.noise = robust_deviation(slowest) / median(slowest);
    }
    if (config.beside != Beside::kNothing) {
        const auto kept = column(samples, [](const StoreSample& s) {
            return s.beside_quiet > 0 ? s.beside_storing / s.beside_quiet : 0;
        });
        row.beside_rate = median(kept);
    }
    return row;
}

VisibleRow summarise(const VisibleConfig& config, const std::vector<VisibleSample>& samples) {
    const auto of = [&](double VisibleSample::*member) {
        return median(column(samples, [&](const VisibleSample& s) { return s.*member; }));
    };
    VisibleRow row;
    row.path = config.path;
    row.producers = config.producers;
    row.warps = config.warps;
    row.bytes_per_producer = Bytes{static_cast<double>(config.bytes)};
    row.fence = config.fence;
    row.addresses = config.addresses;
    row.issue = Cycles{of(&VisibleSample::issue)};
    row.fenced = Cycles{of(&VisibleSample::fenced)};
    row.echo = Cycles{of(&VisibleSample::echo)};
    row.echo_ns = Nanoseconds{of(&VisibleSample::echo_ns)};
    for (const VisibleSample& sample : samples) row.stale_words += sample.stale_words;
    return row;
}

std::vector<std::vector<int>> speed_groups(const std::vector<std::optional<Cycles>>& issue_by_sm,
                                           double gap) {
    std::vector<std::pair<double, int>> order;
    for (std::size_t sm = 0; sm < issue_by_sm.size(); ++sm) {
        if (issue_by_sm[sm]) order.emplace_back(issue_by_sm[sm]->value(), static_cast<int>(sm));
    }
    std::sort(order.begin(), order.end());
    std::vector<std::vector<int>> groups;
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (i == 0 || order[i].first > order[i - 1].first * (1 + gap)) groups.emplace_back();
        groups.back().push_back(order[i].second);
    }
    for (auto& group : groups) std::sort(group.begin(), group.end());
    return groups;
}

}  // namespace xstage::probe
