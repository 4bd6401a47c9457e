#include "model/groups.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace xstage::model {
namespace {

constexpr double kIdleShare = 0.1;  // of the slowest: such an SM did not store
constexpr double kLeastJump =
    1.08;  // between two kinds; within a kind times differ by a few percent
constexpr double kLeastPart = 0.05;  // of the SMs in the smaller kind
constexpr double kMeanSize = 4;      // assumed where nothing is known

}  // namespace

Groups find_groups(const std::vector<SmRow>& rows, int sms, std::string& reason) {
    Groups groups{sms, 0, 1, kMeanSize};
    std::vector<double> times;
    for (const SmRow& row : rows) {
        std::vector<double> stored;
        for (const auto& t : row.issue) {
            if (t) stored.push_back(t->value());
        }
        if (stored.empty()) continue;
        const double idle = kIdleShare * *std::max_element(stored.begin(), stored.end());
        std::erase_if(stored, [idle](double t) { return t < idle; });
        if (stored.size() > times.size()) times = stored;
    }
    if (times.empty()) {
        reason = "no issue times by SM id were recorded";
        return groups;
    }
    groups.sms = std::max(sms, static_cast<int>(times.size()));
    if (static_cast<int>(times.size()) < groups.sms) {
        reason = "issue times by SM id were not recorded with all SMs storing";
        return groups;
    }
    std::sort(times.begin(), times.end());
    const auto n = static_cast<double>(times.size());
    std::size_t cut = 0;
    double jump = kLeastJump;
    for (std::size_t i = 1; i < times.size(); ++i) {
        const double part = static_cast<double>(std::min(i, times.size() - i)) / n;
        if (part >= kLeastPart && times[i] / times[i - 1] > jump)
            jump = times[i] / times[i - 1], cut = i;
    }
    if (cut == 0) {
        reason = "all SMs end within " + std::to_string(std::lround((kLeastJump - 1) * 100)) +
                 "% of their neighbour: no groups show";
        return groups;
    }
    const auto mean = [&](std::size_t a, std::size_t b) {
        return std::accumulate(times.begin() + static_cast<std::ptrdiff_t>(a),
                               times.begin() + static_cast<std::ptrdiff_t>(b), 0.0) /
               static_cast<double>(b - a);
    };
    // Until the favoured end, both kinds share the link; afterwards the others have it alone. In
    // units of one SM's bytes: total rate n / t_slow, favoured rate 1 / t_fast.
    const auto fast = static_cast<double>(cut);
    const double rate_fast = 1 / mean(0, cut);
    const double rate_slow = (n / mean(cut, times.size()) - fast * rate_fast) / (n - fast);
    if (!(rate_slow > 0) || rate_fast <= rate_slow) {
        reason = "the favoured SMs' times contradict one shared link";
        return groups;
    }
    const double ratio = rate_fast / rate_slow;
    // SMs come in pairs, so groups have even sizes; the smallest that fit the counts and the ratio.
    double small = ratio > 1 ? kMeanSize / std::sqrt(ratio) : kMeanSize, large = small * ratio;
    double best = 0.15 * ratio;
    for (int a = 2; a <= 16; a += 2) {
        for (int b = a + 2; b <= 18; b += 2) {
            const bool whole = cut % static_cast<std::size_t>(a) == 0 &&
                               (times.size() - cut) % static_cast<std::size_t>(b) == 0;
            const double off = std::abs(static_cast<double>(b) / a - ratio);
            if (whole && off < best - 1e-9) best = off, small = a, large = b;
        }
    }
    const double small_groups = fast / small, large_groups = (n - fast) / large;
    groups.mean_size = n / (small_groups + large_groups);
    groups.light_share = small_groups / (small_groups + large_groups);
    groups.light_size = small / groups.mean_size;
    reason.clear();
    return groups;
}

}  // namespace xstage::model
