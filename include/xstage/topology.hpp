#pragma once

#include <vector>

namespace xstage::model {

/// How the SMs of a GPU share its link: clusters (GPCs) equally, the groups (CPCs) of a cluster
/// equally, the SMs of a group equally. Without clusters all SMs share alike.
struct Topology {
    int sms = 0;
    std::vector<std::vector<int>> clusters;  ///< SMs in each group of each cluster
    /// Which group the next CTA of a grid with one CTA per SM goes to, groups counted through all
    /// clusters; empty where unknown: then as `even_order` has it.
    std::vector<int> order;
};

/// Storing SMs in each group of each cluster when a grid of that many CTAs runs.
std::vector<std::vector<int>> place(const Topology& topology, int producers);

/// The next CTA goes to the cluster with the fewest CTAs, there to an SM of another pair.
std::vector<int> even_order(const Topology& topology);
/// The next CTA goes to the cluster with the most SMs left.
std::vector<int> most_free_order(const Topology& topology);
/// Any SM may be next, as when an earlier kernel's CTAs end one by one: a draw by `seed`.
std::vector<int> scattered_order(const Topology& topology, unsigned seed);

}  // namespace xstage::model
