#pragma once

#include "sim/node.hpp"
#include "sim/workload.hpp"

namespace xstage::sim {

/// A node whose kernels have `sms` SMs to compute on, each as fast as before.
Node computing_part(const Node& node, int sms);

/// The split of SMs between roles: the last `copying` SMs of a GPU compute nothing and carry what
/// the others have stored to their own GPU to its peers, tile by tile in the order of `inner`,
/// which has the programs of the other SMs. The computing SMs then never wait for the link.
ProgramFactory split_programs(const Cluster& cluster, int copying, const ProgramFactory& inner);

}  // namespace xstage::sim
