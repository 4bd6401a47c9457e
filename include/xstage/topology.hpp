#pragma once

#include <vector>

namespace xstage::model {

/// How the SMs of a GPU share its link. CTAs are placed cluster by cluster (GPC); the link knows
/// halves of the GPU: each has its part of it, shared equally by its groups (CPCs), whatever
/// cluster they belong to, and a group's part equally by its SMs. Without clusters all SMs share
/// alike.
struct Topology {
    int sms = 0;
    std::vector<std::vector<int>> clusters;  ///< SMs in each group of each cluster
    /// Which group the next CTA of a grid with one CTA per SM goes to, groups counted through all
    /// clusters; empty where unknown: then as `even_order` has it.
    std::vector<int> order;
    /// 0 or 1 for each cluster, the half of the GPU it belongs to; empty: the clusters share the
    /// link equally, not the halves.
    std::vector<int> halves = {};
};

/// Storing SMs in each group of each cluster when a grid of that many CTAs runs.
std::vector<std::vector<int>> place(const Topology& topology, int producers);

/// Clusters split into two halves of as many SMs as possible each.
std::vector<int> equal_halves(const Topology& topology);

/// The next CTA goes to the cluster with the fewest CTAs, there to an SM of another pair.
std::vector<int> even_order(const Topology& topology);
/// The next CTA goes to the cluster with the most SMs left.
std::vector<int> most_free_order(const Topology& topology);
/// The same, with ties between clusters and between groups decided by `seed`.
std::vector<int> tied_order(const Topology& topology, unsigned seed);
/// Any SM may be next, as when an earlier kernel's CTAs end one by one: a draw by `seed`.
std::vector<int> scattered_order(const Topology& topology, unsigned seed);

}  // namespace xstage::model
