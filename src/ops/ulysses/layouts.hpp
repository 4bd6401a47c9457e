#pragma once

#include <optional>

#include "xstage/ulysses/plan.hpp"

namespace xstage::ulysses {

/// The best plan of one layout (the padded ones have a free row stride); nothing when the layout
/// cannot serve the problem.
std::optional<Plan> best_of_layout(const Problem& problem, const Heads& heads,
                                   const PlanOptions& options, Layout layout);

/// The slowest rank's prediction for a plan that is otherwise complete.
Prediction predict(const Plan& plan, const PlanOptions& options);

}  // namespace xstage::ulysses
