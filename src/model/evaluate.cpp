#include "model/evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "model/calibrate.hpp"

namespace xstage::model {
namespace {

void compare(const Case& c, const Observed& predicted, std::vector<ErrorSample>& out) {
    const auto add = [&](const char* what, int at, bool slowest) {
        if (c.observed[at] <= 0) return;
        out.push_back({what, c.path, c.load.producers, slowest,
                       std::abs(predicted[at] / c.observed[at] - 1)});
    };
    for (int slowest = 0; slowest < 2; ++slowest) {
        if (c.mode == BurstMode::kIsolated) add("isolated", kFirst + slowest, slowest != 0);
        if (c.mode == BurstMode::kGap2) add("second", kLast + slowest, slowest != 0);
        if (c.mode != BurstMode::kPeriodic) continue;
        add("period", kTotal + slowest, slowest != 0);
        const double gap = c.gap.value();
        const double seen = c.observed[kTotal + slowest] / c.bursts;
        const double mean = seen - gap;
        const double off = predicted[kTotal + slowest] / c.bursts - seen;
        // With one gap fewer than bursts the mean passes through zero at long gaps.
        out.push_back({"mean issue", c.path, c.load.producers, slowest != 0,
                       std::abs(off) / std::max(std::abs(mean), 0.1 * seen)});
    }
}

}  // namespace

double percentile(std::vector<double> values, double fraction) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double at = fraction * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    if (below + 1 == values.size()) return values.back();
    return values[below] + (values[below + 1] - values[below]) * (at - static_cast<double>(below));
}

std::vector<ErrorSample> errors_on(const Profile& profile, const std::vector<Case>& cases) {
    std::vector<ErrorSample> out;
    Simulator simulate(profile);
    for (const Case& c : cases) compare(c, simulate(c), out);
    return out;
}

std::vector<ErrorSample> simple_errors_on(const Profile& like,
                                          const std::vector<Calibration>& calibrations,
                                          const std::vector<Case>& cases) {
    std::vector<ErrorSample> out;
    for (const Case& c : cases) {
        if (!calibrations[c.path].model) continue;
        compare(c, simulate(simple_profile(calibrations[c.path], like, c.path, c.load), c), out);
    }
    return out;
}

std::vector<ErrorLine> summarise(const Profile& profile, const std::vector<ErrorSample>& samples,
                                 const std::vector<ErrorSample>& simple) {
    using Key = std::tuple<std::string, std::string, int, bool>;
    const auto collect = [&](const std::vector<ErrorSample>& from) {
        std::map<Key, std::vector<double>> lines;
        for (const ErrorSample& s : from) {
            for (const std::string& path : {std::string(), profile.paths[s.path].name}) {
                lines[{s.what, path, 0, s.slowest}].push_back(s.error);
                if (!path.empty()) lines[{s.what, path, s.producers, s.slowest}].push_back(s.error);
            }
        }
        return lines;
    };
    const auto ours = collect(samples), theirs = collect(simple);
    std::vector<ErrorLine> out;
    for (const auto& [key, errors] : ours) {
        ErrorLine line;
        bool slowest = false;
        std::tie(line.what, line.path, line.producers, slowest) = key;
        line.statistic = slowest ? "slowest" : "median";
        line.rows = static_cast<int>(errors.size());
        line.median = percentile(errors, 0.5);
        line.p90 = percentile(errors, 0.9);
        if (const auto it = theirs.find(key); it != theirs.end()) {
            line.simple_median = percentile(it->second, 0.5);
            line.simple_p90 = percentile(it->second, 0.9);
        }
        out.push_back(line);
    }
    return out;
}

}  // namespace xstage::model
