#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace xstage::model {

/// Producers that behave alike. The fluid core knows no units: its caller passes cycles and bytes.
struct ProducerClass {
    double count = 0;   ///< producers in the class; a fraction of an SM is fine
    double weight = 1;  ///< share of the link when all compete
    double room = 0;    ///< bytes that one producer may have accepted and not drained
    int turn = 0;       ///< index into FluidModel::turns at the first burst
};

/// Arbitration favours some producers for a while and then others: a turn scales a producer's
/// weight until its fair share of the link has carried `turn_bytes` of the burst.
struct FluidModel {
    std::vector<ProducerClass> classes;
    std::vector<double> turns{1.0};  ///< weight factors
    std::vector<int> next_turn{0};   ///< the turn of the next burst
    double turn_bytes = 0;
    double lasting = 0;         ///< exponent of the turn's factor once it is over
    double spread = 0;          ///< part of a stall over which a class's ends are spread
    double drain = 1;           ///< bytes per cycle of the link, all producers together
    double egress = 1;          ///< bytes per cycle out of one producer
    bool gap_from_all = false;  ///< gaps count from the slowest producer's end
};

/// One burst of every producer.
struct FluidBurst {
    double bytes = 0;        ///< per producer
    double issue = 0;        ///< cycles to issue it with no backpressure, its warps in step
    double issue_apart = 0;  ///< the same once a stall has pulled the producer's warps apart
    double gap = 0;          ///< cycles after it
    double cost = 1;         ///< link time per byte, relative to the best address pattern
};

struct FluidResult {
    std::size_t classes = 0;
    std::vector<float> issue;      ///< [burst * classes + class], cycles
    std::vector<float> queued;     ///< most bytes in flight, all producers, seen when one ended
    std::vector<double> begun;     ///< when the first producer began the burst
    std::vector<double> ended;     ///< when the slowest producer had issued it
    std::vector<double> drained;   ///< when its last byte had left
    std::vector<double> finished;  ///< per class: end of its last issue
};

/// Bytes in flight (all producers) by time; straight lines lead from one point to the next.
using Occupancy = std::vector<std::pair<double, double>>;

/// Runs the bursts through the fluid model, exactly, event by event. Throws Error (kBadInput) for
/// more than 8 classes or a model that cannot drain.
FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts,
                      Occupancy* occupancy = nullptr);

}  // namespace xstage::model
