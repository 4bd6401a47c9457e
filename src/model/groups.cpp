#include "model/groups.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace xstage::model {
namespace {

constexpr double kIdleShare = 0.1;   // of the slowest: such an SM did not store
constexpr double kLeastJump = 1.08;  // between two kinds; within one, times differ by a few percent
constexpr double kLeastPart = 0.05;  // of the SMs in the smaller kind
constexpr std::size_t kGroupsPerCluster = 3;

using Times = std::vector<std::pair<double, int>>;  // of an SM, and its id

Times all_storing(const std::vector<SmRow>& rows) {
    Times best;
    for (const SmRow& row : rows) {
        Times times;
        for (std::size_t i = 0; i < row.issue.size(); ++i) {
            if (row.issue[i]) times.emplace_back(row.issue[i]->value(), static_cast<int>(i));
        }
        if (times.empty()) continue;
        const double idle = kIdleShare * std::max_element(times.begin(), times.end())->first;
        std::erase_if(times, [idle](const auto& t) { return t.first < idle; });
        if (times.size() > best.size()) best = times;
    }
    std::sort(best.begin(), best.end());
    return best;
}

double mean(const Times& times, std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += times[i].first;
    return sum / static_cast<double>(to - from);
}

// How many of the sorted times belong to favoured SMs.
std::size_t favoured(const Times& times) {
    std::size_t cut = 0;
    double jump = kLeastJump;
    for (std::size_t i = 1; i < times.size(); ++i) {
        const double part =
            static_cast<double>(std::min(i, times.size() - i)) / static_cast<double>(times.size());
        if (part < kLeastPart || times[i].first / times[i - 1].first <= jump) continue;
        jump = times[i].first / times[i - 1].first, cut = i;
    }
    return cut;
}

// As equal as whole SMs allow.
void split(int sms, std::size_t groups, std::vector<int>& into) {
    for (; groups > 0; --groups) {
        const auto n = static_cast<int>(groups);
        into.push_back((sms + n - 1) / n);
        sms -= into.back();
    }
}

// SMs seen together in a cluster. Where a cluster is larger than what a launch covers, the SMs left
// over are its own: one without favoured SMs has full groups only, and takes what it lacks of them.
// What remains then is one more cluster, or the rest of the smallest.
std::vector<std::vector<int>> clusters_seen(const std::vector<std::vector<int>>& seen,
                                            const std::set<int>& fast) {
    std::vector<std::vector<int>> clusters;
    std::size_t largest = 0;
    for (const auto& ids : seen) largest = std::max(largest, ids.size());
    std::vector<int> rest;
    for (const auto& ids : seen) {
        if (2 * ids.size() >= largest && ids.size() + 2 >= largest) {
            clusters.push_back(ids);
        } else {
            rest.insert(rest.end(), ids.begin(), ids.end());
        }
    }
    const std::size_t full = (largest + kGroupsPerCluster - 1) / kGroupsPerCluster;
    // A group of fewer SMs than the others; more would be no light one.
    const auto favoured = [&](const std::vector<int>& ids, std::size_t size) -> std::size_t {
        const auto n = static_cast<std::size_t>(
            std::count_if(ids.begin(), ids.end(), [&](int id) { return fast.contains(id); }));
        return n * kGroupsPerCluster < size ? n : 0;
    };
    std::vector<std::vector<int>> out;
    std::size_t spare = rest.size();
    const auto add = [&](std::size_t size, std::size_t early) {
        std::vector<int>& groups = out.emplace_back();
        split(static_cast<int>(size - early), (size - early + full - 1) / full, groups);
        if (early > 0) groups.push_back(static_cast<int>(early));
    };
    for (const std::vector<int>& ids : clusters) {
        const std::size_t early = favoured(ids, ids.size());
        const std::size_t lacks = (full - ids.size() % full) % full;
        const std::size_t takes = fast.empty() || early > 0 || lacks > spare ? 0 : lacks;
        spare -= takes;
        add(ids.size() + takes, early);
    }
    while (spare > 0) {
        const std::size_t size = std::min(spare, largest);
        add(size, spare == size ? favoured(rest, size) : 0);
        spare -= size;
    }
    return out;
}

// From the counts alone: the light groups stand in different clusters.
std::vector<std::vector<int>> clusters_like(int fast, int small, int slow, int large) {
    const auto lights = static_cast<std::size_t>(fast / small);
    const auto heavies = static_cast<std::size_t>(slow / large);
    const std::size_t count = (lights + heavies + kGroupsPerCluster - 1) / kGroupsPerCluster;
    std::vector<std::vector<int>> out(count);
    for (std::size_t i = 0; i < heavies; ++i) out[i % count].push_back(large);
    for (std::size_t i = 0; i < lights; ++i) out[(heavies + i) % count].push_back(small);
    return out;
}

}  // namespace

Topology find_topology(const Measurements& measurements, int sms, std::string& reason) {
    Topology topology{sms, {}, {}, {}};
    const Times times = all_storing(measurements.per_sm);
    if (times.empty()) {
        reason = "no issue times by SM id were recorded";
        return topology;
    }
    topology.sms = std::max(sms, static_cast<int>(times.size()));
    if (static_cast<int>(times.size()) < topology.sms) {
        reason = "issue times by SM id were not recorded with all SMs storing";
        return topology;
    }
    const std::size_t cut = favoured(times);
    std::size_t seen = 0;
    for (const auto& ids : measurements.sm_groups) seen += ids.size();
    if (seen == times.size()) {
        std::set<int> fast;
        for (std::size_t i = 0; i < cut; ++i) fast.insert(times[i].second);
        topology.clusters = clusters_seen(measurements.sm_groups, fast);
        return topology;
    }
    if (cut == 0) {
        reason = "all SMs end within " + std::to_string(std::lround((kLeastJump - 1) * 100)) +
                 "% of their neighbour: no groups show";
        return topology;
    }
    // Until the favoured end, both kinds share the link; afterwards the others have it alone. In
    // units of one SM's bytes: total rate n / t_slow, favoured rate 1 / t_fast.
    const auto n = static_cast<double>(times.size()), fast = static_cast<double>(cut);
    const double rate_fast = 1 / mean(times, 0, cut);
    const double rate_slow = (n / mean(times, cut, times.size()) - fast * rate_fast) / (n - fast);
    if (!(rate_slow > 0) || rate_fast <= rate_slow) {
        reason = "the favoured SMs' times contradict one shared link";
        return topology;
    }
    const double ratio = rate_fast / rate_slow;
    // SMs come in pairs, so groups have even sizes; the smallest that fit the counts and the ratio.
    int small = 0, large = 0;
    double best = 0.15 * ratio;
    for (int a = 2; a <= 16; a += 2) {
        for (int b = a + 2; b <= 18; b += 2) {
            const bool whole = cut % static_cast<std::size_t>(a) == 0 &&
                               (times.size() - cut) % static_cast<std::size_t>(b) == 0;
            const double off = std::abs(static_cast<double>(b) / a - ratio);
            if (whole && off < best - 1e-9) best = off, small = a, large = b;
        }
    }
    if (small == 0) {
        reason = "no whole groups have the ratio " + std::to_string(ratio);
        return topology;
    }
    topology.clusters =
        clusters_like(static_cast<int>(cut), small, static_cast<int>(times.size() - cut), large);
    return topology;
}

}  // namespace xstage::model
