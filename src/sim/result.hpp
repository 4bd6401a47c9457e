#pragma once

#include <string>
#include <vector>

#include "sim/workload.hpp"

namespace xstage::sim {

/// One store burst, or one task without remote bytes (drained and visible are then its end).
struct Span {
    int rank = 0;
    int producer = 0;
    Role role = Role::kTile;
    int id = 0;
    double start_ns = 0;    ///< the task's computation begins
    double issue_ns = 0;    ///< its first store is issued
    double issued_ns = 0;   ///< its last store is accepted
    double drained_ns = 0;  ///< its last byte has left the GPU
    double visible_ns = 0;  ///< its last byte can be read at the peer
    double bytes = 0;       ///< that left the GPU
    double stall_ns = 0;    ///< issue beyond what it takes without backpressure
};

/// Bytes in flight on one GPU at one time.
struct Occupancy {
    double time_ns = 0;
    double bytes = 0;
};

struct ProducerResult {
    double busy_ns = 0;   ///< computing
    double stall_ns = 0;  ///< stores waited for room
    double held_ns = 0;   ///< computation waited for stores
    double gate_ns = 0;   ///< waited for other tasks
    double end_ns = 0;    ///< last store accepted
};

struct RankResult {
    double issued_ns = 0;   ///< last store accepted
    double drained_ns = 0;  ///< last byte left
    double visible_ns = 0;  ///< last byte can be read at its peer
    double end_ns = 0;      ///< the kernel is over: stores issued, drained and acknowledged
    double bytes_issued = 0;
    double bytes_drained = 0;
    double bytes_arrived = 0;
    double peak_bytes = 0;  ///< most bytes in flight at once
    std::vector<ProducerResult> producers;
    std::vector<Occupancy> occupancy;  ///< only where recorded
};

struct Result {
    double total_ns = 0;  ///< the slowest rank's end_ns
    bool incast = false;  ///< some GPU took in less than was sent to it
    long events = 0;
    std::vector<RankResult> ranks;
    std::vector<Span> spans;  ///< only where recorded
};

}  // namespace xstage::sim
