#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xstage/sparse/west.hpp"

namespace xstage::sparse {

/// Query rows a fidelity is judged by: one in the middle of each of `count` equal strata (fewer if
/// there are fewer rows).
inline constexpr std::int64_t kFidelityRows = 16;
std::vector<std::int64_t> stratified_rows(std::int64_t rows, std::int64_t count = kFidelityRows);

/// 1 - Hellinger distance of one row's attention and the same row with only the kept keys,
/// renormalised: with kept mass m it is 1 - sqrt(1 - sqrt(m)). Source: ScalingAttention (FAST).
double fidelity_of_mass(double kept);

/// The target at layer l and step t. x = (l + omega t) / ((layers - 1) + omega (steps - 1)) runs
/// from 0 for the first layer and step to 1 for the last; the allowed loss grows with it:
///     A(l, t) = 1 - strength * ((1 - beta) + beta * x^gamma).
/// Early steps decide the composition and shallow layers feed all others, so they are held to more.
/// `strength` is what the tuning finds; beta, gamma and omega are the shape.
struct FidelitySchedule {
    double beta = 0.75, gamma = 1, omega = 1;
    double strength = 0;

    double target(std::int64_t layer, std::int64_t layers, std::int64_t step,
                  std::int64_t steps) const;
};

/// What FAST must know of one layer and step: for each head the attention mass of the sampled rows
/// by key block, mass[(head * rows.size() + i) * blocks + v].
struct RowSamples {
    std::vector<std::int64_t> rows;
    std::vector<float> mass;
};

/// Fidelity of a head: the mean over its sampled rows, and the worst of them.
struct Fidelity {
    double mean = 0, worst = 0;
};
Fidelity fidelity(const ThresholdMap& map, std::int64_t head, const RowSamples& samples,
                  float top_p);

/// A top-p for every (layer, step, head), [layer][step][head].
struct Budgets {
    std::int64_t layers = 0, steps = 0, heads = 0;
    FidelitySchedule schedule;
    double density = 0;  ///< mean over all
    std::vector<float> top_p;

    std::span<const float> at(std::int64_t layer, std::int64_t step) const {
        return {top_p.data() + (layer * steps + step) * heads, static_cast<std::size_t>(heads)};
    }
};

/// Per (layer, step, head) the largest sparsity whose fidelity is at least the schedule's target,
/// and the schedule's strength such that the mean density is `density`, met from below within what
/// one block makes: what bisection leaves over is given to the heads that are next to gain a block.
/// maps[layer], samples[layer * steps + step]. Throws Error (kBadInput) for shapes that do not fit
/// and for a density that not even the weakest targets reach (the message says the least possible).
Budgets tune(std::span<const ThresholdMap> maps, std::span<const RowSamples> samples,
             std::int64_t steps, double density, FidelitySchedule schedule = {});

}  // namespace xstage::sparse
