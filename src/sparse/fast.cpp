#include "xstage/sparse/fast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>

#include "xstage/error.hpp"

namespace xstage::sparse {

namespace {

void require(bool condition, const std::string& what) {
    if (!condition) throw Error(ErrorKind::kBadInput, "fidelity budgets: " + what);
}

/// One head of one layer and step: what each level of its map costs and gives. The levels are the
/// map's distinct thresholds, so nothing lies between two of them.
struct Curve {
    const std::vector<float>* levels = nullptr;
    const std::vector<double>* density = nullptr;
    std::vector<double> fidelity;  ///< ascending with the level

    std::size_t first_at_least(double target) const {
        const auto at = std::lower_bound(fidelity.begin(), fidelity.end(), target);
        return std::min<std::size_t>(static_cast<std::size_t>(at - fidelity.begin()),
                                     fidelity.size() - 1);
    }
};

/// Density at each level of a head, by one pass over its blocks in the order of their thresholds.
std::vector<double> densities(const ThresholdMap& map, std::int64_t head,
                              const std::vector<float>& levels) {
    const std::int64_t rows = map.layout().rows();
    const std::int64_t text = blocks_of(map.layout().text);
    std::vector<double> pairs(levels.size());
    for (std::int64_t u = 0; u < map.blocks(); ++u) {
        for (std::int64_t v = 0; v < map.blocks(); ++v) {
            const bool always = u < text || v < text;
            const auto level = std::lower_bound(levels.begin(), levels.end(), map.at(head, u, v));
            const auto size =
                static_cast<double>(std::min<std::int64_t>(kBlock, rows - u * kBlock) *
                                    std::min<std::int64_t>(kBlock, rows - v * kBlock));
            pairs[always ? 0 : static_cast<std::size_t>(level - levels.begin())] += size;
        }
    }
    double sum = 0;
    for (double& p : pairs) {
        sum += p;
        p = sum / static_cast<double>(rows) / static_cast<double>(rows);
    }
    return pairs;
}

/// Kept mass of each sampled row at each level, turned into the mean fidelity.
std::vector<double> fidelities(const ThresholdMap& map, std::int64_t head,
                               const RowSamples& samples, const std::vector<float>& levels) {
    const auto blocks = static_cast<std::size_t>(map.blocks());
    const auto text = static_cast<std::size_t>(blocks_of(map.layout().text));
    std::vector<double> mean(levels.size());
    for (std::size_t i = 0; i < samples.rows.size(); ++i) {
        const float* mass = samples.mass.data() +
                            (static_cast<std::size_t>(head) * samples.rows.size() + i) * blocks;
        const auto u = static_cast<std::size_t>(samples.rows[i] / kBlock);
        std::vector<double> kept(levels.size());
        double total = 0;
        for (std::size_t v = 0; v < blocks; ++v) {
            const float threshold =
                map.at(head, static_cast<std::int64_t>(u), static_cast<std::int64_t>(v));
            const auto level = std::lower_bound(levels.begin(), levels.end(), threshold);
            const bool always = u < text || v < text;
            kept[always ? 0 : static_cast<std::size_t>(level - levels.begin())] += double{mass[v]};
            total += double{mass[v]};
        }
        require(total > 0 && std::isfinite(total),
                fmt::format("row {} has a mass of {}", samples.rows[i], total));
        double sum = 0;
        for (std::size_t l = 0; l < levels.size(); ++l) {
            sum += kept[l];
            // The last level keeps everything, whatever the sums round to.
            const double m = l + 1 == levels.size() ? 1.0 : std::min(1.0, sum / total);
            mean[l] += fidelity_of_mass(m) / static_cast<double>(samples.rows.size());
        }
    }
    if (!mean.empty()) mean.back() = 1;
    return mean;
}

void check(std::span<const ThresholdMap> maps, std::span<const RowSamples> samples,
           std::int64_t steps) {
    require(!maps.empty() && steps >= 1, "no layer or no step");
    require(samples.size() == maps.size() * static_cast<std::size_t>(steps),
            fmt::format("{} sets of rows for {} layers x {} steps", samples.size(), maps.size(),
                        steps));
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const ThresholdMap& map = maps[i / static_cast<std::size_t>(steps)];
        require(map.heads() == maps[0].heads(), "layers differ in their heads");
        const RowSamples& s = samples[i];
        require(!s.rows.empty() && s.mass.size() == s.rows.size() * static_cast<std::size_t>(
                                                                        map.heads() * map.blocks()),
                fmt::format("set {} has {} rows and {} masses", i, s.rows.size(), s.mass.size()));
        for (const std::int64_t row : s.rows) {
            require(row >= 0 && row < map.layout().rows(), fmt::format("there is no row {}", row));
        }
    }
}

}  // namespace

std::vector<std::int64_t> stratified_rows(std::int64_t rows, std::int64_t count) {
    count = std::min(count, rows);
    std::vector<std::int64_t> picked;
    for (std::int64_t i = 0; i < count; ++i) picked.push_back((2 * i + 1) * rows / (2 * count));
    return picked;
}

double fidelity_of_mass(double kept) {
    return 1 - std::sqrt(1 - std::sqrt(std::clamp(kept, 0.0, 1.0)));
}

double FidelitySchedule::target(std::int64_t layer, std::int64_t layers, std::int64_t step,
                                std::int64_t steps) const {
    const double span = static_cast<double>(layers - 1) + omega * static_cast<double>(steps - 1);
    const double at = static_cast<double>(layer) + omega * static_cast<double>(step);
    const double x = span > 0 ? at / span : 0;
    return 1 - strength * ((1 - beta) + beta * std::pow(x, gamma));
}

Fidelity fidelity(const ThresholdMap& map, std::int64_t head, const RowSamples& samples,
                  float top_p) {
    const auto blocks = static_cast<std::size_t>(map.blocks());
    const std::int64_t text = blocks_of(map.layout().text);
    Fidelity f{0, 1};
    for (std::size_t i = 0; i < samples.rows.size(); ++i) {
        const float* mass = samples.mass.data() +
                            (static_cast<std::size_t>(head) * samples.rows.size() + i) * blocks;
        const std::int64_t u = samples.rows[i] / kBlock;
        double kept = 0;
        double total = 0;
        for (std::int64_t v = 0; v < map.blocks(); ++v) {
            total += double{mass[v]};
            if (u < text || v < text || map.at(head, u, v) <= top_p) kept += double{mass[v]};
        }
        const double row = fidelity_of_mass(kept >= total ? 1 : kept / total);
        f.mean += row / static_cast<double>(samples.rows.size());
        f.worst = std::min(f.worst, row);
    }
    return f;
}

Budgets tune(std::span<const ThresholdMap> maps, std::span<const RowSamples> samples,
             std::int64_t steps, double density, FidelitySchedule schedule) {
    check(maps, samples, steps);
    require(density > 0 && density <= 1, fmt::format("{} is no density", density));
    require(schedule.beta >= 0 && schedule.beta <= 1 && schedule.gamma > 0 && schedule.omega >= 0,
            "beta must lie within 0 and 1, gamma be positive and omega not negative");
    const auto layers = static_cast<std::int64_t>(maps.size());
    const std::int64_t heads = maps[0].heads();

    std::vector<std::vector<float>> levels;
    std::vector<std::vector<double>> density_of;
    for (const ThresholdMap& map : maps) {
        for (std::int64_t h = 0; h < heads; ++h) {
            levels.push_back(map.levels(h));
            density_of.push_back(densities(map, h, levels.back()));
        }
    }
    std::vector<Curve> curves;
    for (std::int64_t l = 0; l < layers; ++l) {
        for (std::int64_t t = 0; t < steps; ++t) {
            for (std::int64_t h = 0; h < heads; ++h) {
                const auto of_head = static_cast<std::size_t>(l * heads + h);
                curves.push_back({&levels[of_head], &density_of[of_head],
                                  fidelities(maps[static_cast<std::size_t>(l)], h,
                                             samples[static_cast<std::size_t>(l * steps + t)],
                                             levels[of_head])});
            }
        }
    }

    std::vector<std::size_t> picked(curves.size());
    const auto spend = [&](double strength) {
        schedule.strength = strength;
        double sum = 0;
        for (std::size_t i = 0; i < curves.size(); ++i) {
            const auto lt = static_cast<std::int64_t>(i) / heads;
            picked[i] =
                curves[i].first_at_least(schedule.target(lt / steps, layers, lt % steps, steps));
            sum += (*curves[i].density)[picked[i]];
        }
        return sum / static_cast<double>(curves.size());
    };
    // At this strength even the strictest target is below 0.
    double high = schedule.beta < 1 ? 1 / (1 - schedule.beta) + 1 : 1e6;
    double low = 0;
    const double least = spend(high);
    require(least <= density,
            fmt::format("a density of {:.4f} is below the least possible, {:.4f}", density, least));
    if (spend(0) > density) {
        for (int i = 0; i < 60; ++i) {
            const double middle = (low + high) / 2;
            (spend(middle) > density ? low : high) = middle;
        }
    } else {
        high = 0;
    }
    double sum = spend(high) * static_cast<double>(curves.size());
    const double most = density * static_cast<double>(curves.size());

    // Rounding to whole blocks left something over. The cheapest next block of all goes first.
    using Next = std::pair<double, std::size_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    const auto offer = [&](std::size_t i) {
        const std::vector<double>& d = *curves[i].density;
        if (picked[i] + 1 < d.size()) next.emplace(d[picked[i] + 1] - d[picked[i]], i);
    };
    for (std::size_t i = 0; i < curves.size(); ++i) offer(i);
    // At a density of 1 a rounded sum must not leave a block out, as one that no sampled row sees.
    while (!next.empty() && (density == 1 || sum + next.top().first <= most)) {
        const auto [cost, i] = next.top();
        next.pop();
        ++picked[i];
        sum += cost;
        offer(i);
    }
    Budgets budgets{layers, steps, heads, schedule, sum / static_cast<double>(curves.size()), {}};
    for (std::size_t i = 0; i < curves.size(); ++i) {
        budgets.top_p.push_back((*curves[i].levels)[picked[i]]);
    }
    return budgets;
}

}  // namespace xstage::sparse
