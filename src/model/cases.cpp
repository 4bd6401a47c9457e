#include "model/cases.hpp"

#include <algorithm>
#include <cmath>

namespace xstage::model {
namespace {

const Spread* issue_of(const BurstRow& row, int burst) {
    for (const BurstIssue& issue : row.issue) {
        if (issue.burst == burst) return &issue.cycles;
    }
    return nullptr;
}

void put(Case& c, int at, double median, double slowest, double weight) {
    c.observed[at] = median, c.observed[at + 1] = slowest;
    c.weight[at] = c.weight[at + 1] = weight;
}

}  // namespace

GigaHertz typical_clock(const Measurements& measurements) {
    std::vector<double> clocks;
    for (const BurstRow& row : measurements.bursts) {
        if (row.clock) clocks.push_back(row.clock->value());
    }
    if (clocks.empty()) return GigaHertz{1.0};
    const auto middle = clocks.begin() + static_cast<std::ptrdiff_t>(clocks.size() / 2);
    std::nth_element(clocks.begin(), middle, clocks.end());
    return GigaHertz{*middle};
}

std::vector<Case> make_cases(const Measurements& measurements, GigaHertz typical,
                             std::vector<std::string>& paths) {
    std::vector<Case> cases;
    for (const BurstRow& row : measurements.bursts) {
        if (row.target != Target::kRemote || row.marked || row.beside != "nothing" ||
            row.addresses != Addresses::kFresh || row.destinations != 1 || row.issue.empty()) {
            continue;
        }
        auto at = std::find(paths.begin(), paths.end(), row.path);
        if (at == paths.end()) at = paths.insert(at, row.path);
        Case c;
        c.path = static_cast<std::size_t>(at - paths.begin());
        c.load = {row.producers, row.warps, row.clock.value_or(typical), row.gap_from};
        c.bytes = row.bytes_per_producer;
        c.bursts = row.bursts;
        c.gap = row.gap;
        c.mode = row.mode;
        // SMs that meet wait for their stores to drain as well: what the total leaves is the gap.
        if (row.gap_from == GapFrom::kAll && row.bursts == 2 && row.issue.size() == 2) {
            const Cycles issued = row.issue[0].cycles.max + row.issue[1].cycles.max;
            c.gap = std::max(c.gap, row.total.max - issued);
        }
        const Spread* first = issue_of(row, 0);
        const Spread* last = row.bursts > 1 ? issue_of(row, row.bursts - 1) : nullptr;
        // The first burst of a sequence repeats the isolated rows; a long sequence's total says
        // more than its last burst, which runs when the favoured producers are done.
        const bool alone = row.mode == BurstMode::kIsolated;
        if (first) put(c, kFirst, first->p50.value(), first->max.value(), alone ? 1 : 0.3);
        if (last) {
            const double weight = row.mode == BurstMode::kGap2 ? 1.5 : 0;
            put(c, kLast, last->p50.value(), last->max.value(), weight);
        }
        put(c, kTotal, row.total.p50.value(), row.total.max.value(),
            row.mode == BurstMode::kPeriodic ? 2 : 0);
        cases.push_back(c);
    }
    return cases;
}

std::vector<Case> thin_out(const std::vector<Case>& cases) {
    constexpr int kEvery = 3;      // of the long sequences
    constexpr int kPartial = 2;    // of the rows of a part of the SMs, which have most classes
    constexpr double kLong = 6e5;  // bytes from which a burst says again what half of it said
    int most = 0;
    for (const Case& c : cases) most = std::max(most, c.load.producers);
    std::vector<Case> out;
    std::array<int, 4> seen{};
    for (const Case& c : cases) {
        const bool sequence = c.mode == BurstMode::kPeriodic;
        const bool partial = c.load.producers > 1 && c.load.producers < most;
        if (!sequence && c.load.warps != 8 && c.bytes.value() > kLong) continue;
        const int every = (sequence ? kEvery : 1) * (partial ? kPartial : 1);
        if (every > 1 && seen[2 * sequence + partial]++ % every != 0) continue;
        out.push_back(c);
        for (double& w : out.back().weight) w *= std::sqrt(static_cast<double>(every));
    }
    return out;
}

void Simulator::prepare(const Case& c) {
    const StorePath& path = profile_.paths[c.path];
    model_ = &models_.of(path, c.load, c.bursts);
    first_ = fluid_burst(profile_.network, path, c.load, c.bytes, c.gap, true);
    next_ = fluid_burst(profile_.network, path, c.load, c.bytes, c.gap, false);
}

bool Simulator::agrees(Simulator& other, const Case& c) {
    prepare(c), other.prepare(c);
    return first_ == other.first_ && (c.bursts == 1 || next_ == other.next_) &&
           *model_ == *other.model_;
}

Observed Simulator::operator()(const Case& c) {
    prepare(c);
    bursts_.assign(static_cast<std::size_t>(c.bursts), next_);
    bursts_.front() = first_;
    const FluidResult result = run_fluid(*model_, bursts_, nullptr, FluidDetail::kFirstAndLast);

    Observed out{};
    out[kFirst] = result.median.front(), out[kFirstSlowest] = result.slowest.front();
    out[kLast] = result.median.back(), out[kLastSlowest] = result.slowest.back();
    const double finish = profile_.paths[c.path].finish.value();
    out[kTotal] = result.finished_median + finish;
    out[kTotalSlowest] = result.finished + finish;
    return out;
}

Observed simulate(const Profile& profile, const Case& c) {
    return Simulator(profile)(c);
}

}  // namespace xstage::model
