#include "model/recovery.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "xstage/model.hpp"

namespace xstage::model {
namespace {

constexpr double kRecovered = 1.05;    // of the plateau, as recovery_gap has it
constexpr std::size_t kLeastGaps = 6;  // of a sweep: fewer show no plateau

using Sweep = std::map<double, double>;  // issue time of the second burst by gap, cycles

std::optional<std::pair<Cycles, Cycles>> bracket(const Sweep& sweep) {
    if (sweep.size() < kLeastGaps) return std::nullopt;
    std::vector<double> longest;
    for (auto it = sweep.rbegin(); longest.size() < sweep.size() / 3; ++it) {
        longest.push_back(it->second);
    }
    const auto middle = longest.begin() + static_cast<std::ptrdiff_t>(longest.size() / 2);
    std::nth_element(longest.begin(), middle, longest.end());
    const auto recovered = std::find_if(sweep.begin(), sweep.end(), [&](const auto& row) {
        return row.second <= kRecovered * *middle;
    });
    if (recovered == sweep.begin() || recovered == sweep.end()) return std::nullopt;
    return std::pair{Cycles{std::prev(recovered)->first}, Cycles{recovered->first}};
}

}  // namespace

std::vector<RecoveryBracket> recovery_brackets(const std::vector<Case>& cases) {
    using Key = std::tuple<std::size_t, int, int, GapFrom, double>;
    std::map<Key, std::vector<const Case*>> sweeps;
    for (const Case& c : cases) {
        if (c.mode != BurstMode::kGap2 || c.observed[kLast] <= 0) continue;
        const Load& load = c.load;
        sweeps[{c.path, load.producers, load.warps, load.gap_from, c.bytes.value()}].push_back(&c);
    }
    std::vector<RecoveryBracket> out;
    for (const auto& [key, rows] : sweeps) {
        for (const bool slowest : {false, true}) {
            Sweep sweep;
            for (const Case* c : rows) {
                sweep[c->gap.value()] = c->observed[slowest ? kLastSlowest : kLast];
            }
            if (const auto gaps = bracket(sweep)) {
                const Case& c = *rows.front();
                out.push_back({c.path, c.load, c.bytes, slowest, gaps->first, gaps->second});
            }
        }
    }
    return out;
}

std::vector<ErrorSample> recovery_errors(const Profile& profile,
                                         const std::vector<RecoveryBracket>& brackets) {
    std::vector<ErrorSample> out;
    for (const RecoveryBracket& b : brackets) {
        Scenario scenario;
        scenario.path = profile.paths[b.path].name;
        scenario.producers = b.load.producers, scenario.warps = b.load.warps;
        scenario.clock = b.load.clock, scenario.gap_from = b.load.gap_from;
        const Cycles gap = recovery_gap(profile, scenario, b.bytes, b.slowest) * b.load.clock;
        const double error = gap < b.low ? 1 - gap / b.low : gap > b.high ? gap / b.high - 1 : 0;
        out.push_back({"recovery gap", b.path, b.load.producers, b.slowest, error});
    }
    return out;
}

}  // namespace xstage::model
