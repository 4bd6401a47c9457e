#pragma once

#include <vector>

#include "plan/advisor.hpp"
#include "sim/scenario.hpp"

namespace xstage::sim {

/// An order that a scenario could run with.
struct Option {
    plan::Candidate candidate;
    Scenario scenario;
};

/// The scenario's own order first, then every other one that its kernel knows: for MegaMoE waves,
/// leads, alternation and ratio, for Ulysses the tile orders, or for a stitched layout the layouts
/// (chunks, pages in turn, batch index) and the chunk to begin with; for both the splits of the SMs
/// into some that compute and some that copy. Throws kBadInput for a user's trace, which has one
/// order only.
std::vector<Option> options_of(const Scenario& scenario);

plan::StoreLimits limits_of(const Node& node);

/// Ranks the options by the closed form and simulates the best three and the scenario's own.
plan::Advice advise(const std::vector<Option>& options, int threads = 0);

}  // namespace xstage::sim
