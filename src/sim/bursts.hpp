#pragma once

#include <vector>

#include "sim/node.hpp"
#include "sim/workload.hpp"

namespace xstage::sim {

/// One burst of one producer: `gap_ns` of computation, then `bytes` to GPU `destination`.
struct TraceBurst {
    int rank = 0;
    int producer = 0;
    int destination = 0;
    double gap_ns = 0;
    double bytes = 0;
};

/// A user's own sequence of bursts. Producers go their own ways (gaps count from their own end of
/// issue) or, `in_step`, burst n of all producers of a GPU begins when all have issued burst n-1
/// and the longest gap before burst n is over.
struct Trace {
    std::vector<TraceBurst> bursts;  ///< of a producer in order of time
    bool in_step = false;
};

/// `producers` SMs of each GPU (all but those of the last, which only receives, where `one_way`)
/// store `bursts` to their right neighbour; gap n is after burst n.
Trace uniform_trace(int gpus, int producers, const std::vector<double>& bytes,
                    const std::vector<double>& gap_ns, bool in_step, bool one_way = false);

ProgramFactory trace_programs(const Cluster& cluster, const Trace& trace);

}  // namespace xstage::sim
