#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace xstage::model {

/// The link is shared by weight among clusters, a cluster's part equally by its groups, a group's
/// part by weight among its producers; what one cannot use goes to the others of its level, and
/// what a cluster cannot use to the other clusters. The fluid core knows no units: its caller
/// passes cycles and bytes.
struct FluidCluster {
    double count = 1;   ///< clusters alike
    double weight = 1;  ///< of the claim of each
    bool operator==(const FluidCluster&) const = default;
};

struct FluidGroup {
    int cluster = 0;   ///< index into FluidModel::clusters
    double count = 1;  ///< groups alike in each such cluster
    bool operator==(const FluidGroup&) const = default;
};

/// Producers that behave alike.
struct ProducerClass {
    int group = 0;      ///< index into FluidModel::groups
    double count = 1;   ///< producers of the class in each such group; a fraction is fine
    double room = 0;    ///< bytes that one producer may have accepted and not drained
    double weight = 1;  ///< within the group
    int turn = 0;       ///< index into FluidModel::turns at the first burst
    bool operator==(const ProducerClass&) const = default;
};

/// What a gap is counted from: each issuer's (warp's) own end, its producer's end, or the end of
/// the slowest producer.
enum class FluidGap { kIssuer, kProducer, kAll };

/// Arbitration favours some producers for a while and then others: a turn scales a producer's
/// weight until its fair share of the link has carried `turn_bytes` of the burst.
struct FluidModel {
    std::vector<FluidCluster> clusters{{}};
    std::vector<FluidGroup> groups{{}};  ///< in the order of their clusters
    std::vector<ProducerClass> classes;  ///< in the order of their groups
    std::vector<double> turns{1.0};      ///< weight factors
    std::vector<double> after{1.0};      ///< what each leaves for the rest of the burst
    std::vector<int> next_turn{0};       ///< the turn of the next burst
    double turn_bytes = 0;
    double spread = 0;       ///< part of a stall by which a class's producers come apart
    double tail = 0;         ///< of a group's slowest producer beyond its last class, in steps
    double drain = 1;        ///< bytes per cycle of the link, all producers together
    double egress = 1;       ///< bytes per cycle out of one producer
    double round_bytes = 0;  ///< that a producer's other issuers store between two of one's own
    FluidGap gap_from = FluidGap::kProducer;
    bool operator==(const FluidModel&) const = default;
};

/// One burst of every producer.
struct FluidBurst {
    double bytes = 0;        ///< per producer
    double issue = 0;        ///< cycles to issue it with no backpressure, its issuers in step
    double issue_apart = 0;  ///< the same of one issuer that has no rival in its producer
    double gap = 0;          ///< cycles after it
    double cost = 1;         ///< link time per byte, relative to the best address pattern
    bool operator==(const FluidBurst&) const = default;
};

struct FluidResult {
    std::vector<float> slowest;   ///< issue time of the slowest issuer, cycles
    std::vector<float> median;    ///< and of the median one
    std::vector<float> queued;    ///< most bytes in flight, all producers, seen when one ended
    std::vector<double> begun;    ///< when the first producer began the burst
    std::vector<double> drained;  ///< when its last byte had left
    double finished = 0;          ///< end of the slowest issuer's last issue
    double finished_median = 0;   ///< and of the median one's
};

/// What a run can tell beside its result.
struct FluidTrace {
    /// Bytes in flight (all producers) by time; straight lines lead from one point to the next.
    std::vector<std::pair<double, double>> occupancy;
    std::vector<float> issue;  ///< [burst * classes + class], slowest issuer of the class
};

constexpr std::size_t kMostClasses = 96;

/// Which bursts' issue times and bytes in flight a caller asks for.
enum class FluidDetail { kEveryBurst, kFirstAndLast };

/// Runs the bursts through the fluid model, exactly, event by event. Throws Error (kBadInput) for
/// more than kMostClasses classes or a model that cannot drain.
FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts,
                      FluidTrace* trace = nullptr, FluidDetail detail = FluidDetail::kEveryBurst);

}  // namespace xstage::model
