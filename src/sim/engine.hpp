#pragma once

#include "sim/node.hpp"
#include "sim/result.hpp"
#include "sim/workload.hpp"

namespace xstage::sim {

struct RunOptions {
    bool record = false;     ///< keep spans and occupancy
    int threads = 0;         ///< 0: as many as the machine has
    double slice_ns = 4000;  ///< how often the ingress links are looked at
};

/// Runs one program per GPU. Deterministic, whatever the number of threads: GPUs meet only at slice
/// ends. A first pass runs them apart; where no ingress link was overrun that is the result.
/// Otherwise a second pass throttles, slice by slice, the stores to GPUs that get more than they
/// can take, in max-min fair shares.
Result run(const Cluster& cluster, const ProgramFactory& programs, const RunOptions& options = {});

}  // namespace xstage::sim
