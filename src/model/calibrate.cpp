#include <algorithm>
#include <cmath>
#include <map>

#include "model/calibrate.hpp"
#include "xstage/model.hpp"

namespace xstage::model {
namespace {

constexpr double kTypicalClock = 1.0;
constexpr double kFree = 1.10;  // an isolated burst within 10% of its free time has met no room

const Spread* first_issue(const BurstRow& row) {
    for (const BurstIssue& i : row.issue) {
        if (i.burst == 0) return &i.cycles;
    }
    return nullptr;
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

}  // namespace

Calibration calibrate(const std::vector<BurstRow>& rows, const std::string& path) {
    std::vector<const BurstRow*> use;
    Calibration out;
    std::vector<double> clocks;
    for (const BurstRow& row : rows) {
        if (row.path != path || row.both_directions || row.issue.empty()) continue;
        if (row.clock) clocks.push_back(row.clock->value());
        if (row.target == Target::kRemote) out.producers = std::max(out.producers, row.producers);
    }
    if (out.producers == 0) return out.reason = "no remote rows of this path", out;
    const GigaHertz clock{clocks.empty() ? kTypicalClock : median(clocks)};
    const auto time_of = [&](const BurstRow& row, Cycles cycles) {
        return cycles / row.clock.value_or(clock);
    };
    for (const BurstRow& row : rows) {
        if (row.path == path && row.producers == out.producers && !row.both_directions &&
            !row.issue.empty()) {
            use.push_back(&row);
        }
    }

    // R: zero-gap periodic bursts, drain-limited where the period grows with V.
    std::vector<double> rates;
    for (const BurstRow* row : use) {
        if (row->target != Target::kRemote || row->mode != BurstMode::kPeriodic ||
            row->gap.value() > 0 || row->bursts < 2) {
            continue;
        }
        const Bytes all = row->bytes_per_producer * (row->producers * row->bursts);
        rates.push_back((all / time_of(*row, row->total.max)).value());
    }
    if (rates.empty()) return out.reason = "no zero-gap periodic rows: R is not identified", out;
    BurstGap model;
    model.drain = BytesPerNanosecond{median(rates)};

    // T_iss0: the plateau of the mean issue time over the longest gaps, else local stores.
    std::map<double, double> free_times;  // bytes per producer -> ns
    for (const BurstRow* row : use) {
        const bool local = row->target == Target::kLocal && row->mode == BurstMode::kIsolated;
        if (!local) continue;
        const double t = time_of(*row, first_issue(*row)->max).value();
        auto [at, fresh] = free_times.try_emplace(row->bytes_per_producer.value(), t);
        if (!fresh) at->second = std::min(at->second, t);
    }
    for (const BurstRow* row : use) {
        if (row->target != Target::kRemote || row->bursts < 2) continue;
        for (const BurstIssue& i : row->issue) {
            if (i.burst == 0) continue;
            const double t = time_of(*row, i.cycles.p50).value();
            auto [at, fresh] = free_times.try_emplace(row->bytes_per_producer.value(), t);
            if (!fresh) at->second = std::min(at->second, t);
        }
    }
    if (free_times.empty()) {
        return out.reason = "no second bursts and no local rows: T_iss0 is not identified", out;
    }

    // Q: the knee of the isolated sweep, the largest burst still issued freely, in flight then.
    std::map<double, double> sweep;
    for (const BurstRow* row : use) {
        if (row->target != Target::kRemote || row->mode != BurstMode::kIsolated) continue;
        const double t = time_of(*row, first_issue(*row)->max).value();
        auto [at, fresh] = sweep.try_emplace(row->bytes_per_producer.value(), t);
        if (!fresh) at->second = std::min(at->second, t);
    }
    double knee = 0, stalled = 0;
    for (const auto& [bytes, t] : sweep) {
        const auto free = free_times.lower_bound(bytes);
        if (free == free_times.end()) break;
        if (t <= kFree * std::max(free->second, 1.0) + 50) {
            knee = bytes;
        } else {
            stalled = bytes;
            break;
        }
    }
    if (knee == 0 || stalled == 0) {
        return out.reason = "the isolated sweep shows no knee: Q is not identified", out;
    }
    out.at = Bytes{free_times.lower_bound(knee)->first};
    model.issue = Nanoseconds{free_times.lower_bound(knee)->second};
    model.capacity = peak_occupancy(model, Bytes{knee * out.producers});
    out.model = model;
    return out;
}

Profile simple_profile(const Calibration& calibration, const Profile& like, std::size_t path,
                       const Load& load) {
    Profile profile;
    profile.clock = like.clock;
    const BurstGap& m = *calibration.model;
    profile.network.drain = m.drain;
    profile.network.egress = BytesPerCycle{1e9};
    profile.network.producer_room = m.capacity / load.producers;
    profile.network.group_room = Bytes{1e15};
    profile.topology.sms = load.producers;
    StorePath simple;
    simple.name = like.paths[path].name;
    simple.per_warp = false;
    simple.instruction = Bytes{1};
    // The paper's T_iss0 belongs to one burst size; issue is taken to be proportional to it.
    simple.accept = calibration.at / (m.issue * load.clock);
    profile.paths.assign(path + 1, simple);
    return profile;
}

}  // namespace xstage::model
