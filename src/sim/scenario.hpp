#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/bursts.hpp"
#include "sim/engine.hpp"
#include "sim/moe.hpp"
#include "sim/ulysses.hpp"

namespace xstage::sim {

/// A scenario document: a cluster and one workload.
struct Scenario {
    std::string name;
    Cluster cluster;
    std::optional<Ulysses> ulysses;
    std::optional<Moe> moe;
    std::optional<Trace> trace;

    ProgramFactory programs() const;
    /// What the node document does not tell and the simulation takes for granted, a sentence each.
    std::vector<std::string> assumptions() const;
};

/// A node document with the figures of one of its store paths; without a name, its first.
/// Throws kBadInput with the file and the JSON path.
Node read_node(const std::string& file, const std::string& path = {});

/// Throws kBadInput with the file, the JSON path and what was expected there. `node`, where given,
/// replaces the document's own.
Scenario read_scenario(const std::string& file, const std::string& node = {});

}  // namespace xstage::sim
