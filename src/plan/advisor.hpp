#pragma once

// Picks an order: all candidates by the closed form of the Burst-Gap model, the best few by a
// simulation that the caller supplies.

#include <functional>
#include <string>
#include <vector>

namespace xstage::plan {

/// A stretch of a kernel on one GPU: what it computes, and what it stores evenly meanwhile.
struct Phase {
    std::string name;
    double compute_ns = 0;
    double bytes = 0;  ///< that leave the GPU
};

/// Rates in bytes/ns, sizes in bytes.
struct StoreLimits {
    double rate = 0;           ///< R: drain rate of a GPU
    double room = 0;           ///< Q: what can be in flight
    double tail_ns = 0;        ///< from the last drained byte to the end of the kernel
    double rate_error = 0.05;  ///< half width of R's interval, relative
    double room_error = 0.15;
};

struct Estimate {
    double total_ns = 0;
    double stall_ns = 0;  ///< phases waited for room
    double tail_ns = 0;   ///< stores were drained after the last computation
    double peak_bytes = 0;
    int worst = -1;  ///< phase with the longest stall; -1: none stalls
    double worst_stall_ns = 0;
};

/// The Burst-Gap model over a sequence of phases: a phase that begins with q bytes in flight takes
/// max(compute, (bytes - (Q - q)) / R), and what it leaves in flight drains under the next.
Estimate estimate(const std::vector<Phase>& phases, const StoreLimits& limits);

struct Candidate {
    std::string name;
    std::vector<Phase> phases;
    int tag = 0;      ///< the caller's
    double rate = 0;  ///< where its stores leave more slowly than the node could; 0: they do not
    /// Where results wait in memory instead of in the room: its phases then never stall.
    bool buffered = false;
};

/// The limits that hold for a candidate.
StoreLimits limits_for(const Candidate& candidate, const StoreLimits& limits);

struct Ranked {
    int candidate = 0;
    Estimate closed_form;
    double simulated_ns = -1;  ///< negative: was not simulated
};

struct Advice {
    int choice = 0;
    double gain = 1;  ///< baseline's time over the choice's
    double gain_low = 1, gain_high = 1;
    std::string reason;          ///< one sentence
    std::vector<Ranked> ranked;  ///< best first; the simulated ones before the others
};

/// Time of the candidate in ns, from a simulation.
using Simulate = std::function<double(const Candidate&)>;

/// Ranks the candidates and chooses. `baseline` is the one that the gain is against; it is
/// simulated as well as the `finalists` best by the closed form. Without `simulate` the closed form
/// decides. Candidates that come out within `tie` of the best count as equal, and the earliest of
/// them in the list is chosen: list the plainest first.
Advice advise(const std::vector<Candidate>& candidates, int baseline, const StoreLimits& limits,
              const Simulate& simulate, int finalists = 3, double tie = 0.002);

}  // namespace xstage::plan
