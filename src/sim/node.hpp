#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace xstage::model {
struct Profile;
}

namespace xstage::sim {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// What the simulator must know of a node. Sizes in bytes, times in ns, rates in bytes/ns (= GB/s).
/// The defaults describe a GPU whose stores never wait; a node document or a profile fills them in.
struct Node {
    std::string name;
    int sms = 1;              ///< producers of a GPU
    std::vector<int> groups;  ///< SMs per group that shares a path; empty: all SMs form one group
    /// How many of `groups` each half of the GPU has, in their order: halves share the link, a
    /// half's groups share its part. Empty: the groups share the link.
    std::vector<int> halves;
    double balance = 1;  ///< link share of the first half over that of the others
    /// Group of each CTA of a grid with fewer CTAs than SMs; empty: spread evenly.
    std::vector<int> order;

    double link_rate = kUnlimited;     ///< drain rate of a GPU to all its peers together
    double ingress_rate = kUnlimited;  ///< what a GPU takes in from all its peers together
    double ingress_buffer = 256e3;     ///< bytes that the fabric holds before an incast is felt
    /// Link time per byte of rows stored in step, by the bytes from one row to the next, over that
    /// of rows one behind the other. Powers of two cost nothing more.
    std::map<double, double> pitch_cost;
    double network_rate = kUnlimited;  ///< of a GPU to the GPUs of other nodes
    double network_latency_ns = 0;     ///< added to what crosses the network

    double private_room = 0;            ///< bytes in flight that each producer has for itself
    double shared_room = 0;             ///< bytes in flight that a whole group shares
    double shared_cap = kUnlimited;     ///< most that one producer may hold of the shared room
    double producer_rate = kUnlimited;  ///< drain rate of one producer alone

    /// How unequally the producers of a group are served: log-normal weights, spread by `favour`
    /// above the median and by `disfavour` below it. A producer keeps the part `keep` of its luck;
    /// the rest is dealt anew with the first burst after `turn_bytes`. Of a burst's bytes beyond
    /// `turn_bytes` only the part `lasting` of the exponent holds.
    double favour = 0, disfavour = 0;
    double keep = 0, lasting = 1;
    double turn_bytes = 0;  ///< 0: luck is dealt anew for each burst and holds for all of it

    double issue_base_ns = 0;  ///< time to issue a burst: base + bytes / issue_rate
    double issue_rate = kUnlimited;
    double local_rate = kUnlimited;  ///< of one producer's stores to its own GPU
    double visible_ns = 0;           ///< from drained to visible at the peer
    double ack_ns = 0;  ///< from drained to the end of a kernel, beyond that of local stores

    double fp8_tflops = 0;  ///< dense, as reached by a kernel; 0 where unknown
    double bf16_tflops = 0;
    double memory_rate = 0;

    int gpus_measured = 2;  ///< a simulation of more GPUs than this is an extrapolation

    /// Issue time of a burst that meets no backpressure.
    double issue_ns(double bytes) const {
        return bytes > 0 ? issue_base_ns + bytes / issue_rate : 0;
    }
    /// Issue time of a burst to the own GPU.
    double local_ns(double bytes) const {
        return bytes > 0 ? issue_base_ns + bytes / std::min(issue_rate, local_rate) : 0;
    }
    /// 1 for a pitch that was not measured.
    double cost_of_pitch(double bytes) const {
        const auto found = pitch_cost.find(bytes);
        return found == pitch_cost.end() ? 1 : found->second;
    }
    int group_count() const { return groups.empty() ? 1 : static_cast<int>(groups.size()); }
    /// The group of each of `producers` SMs when they are spread over the groups as evenly as the
    /// groups' sizes allow: what a grid of fewer CTAs than SMs does.
    std::vector<int> group_of(int producers) const;
    /// Arbitration weight for a burst of `bytes` of member `place` of a group in its turn number
    /// `turn`. `luck` are the quantiles of the group's members: luck_of(members).
    double weight(const std::vector<double>& luck, int place, long turn, double bytes) const;
    /// All that can be in flight when every SM stores: the Q of the closed form.
    double room() const;
};

/// Standard normal quantiles of the middles of `members` equal parts, lowest first.
std::vector<double> luck_of(int members);

/// What a fitted profile tells of its node, for one store path issued by `warps` warps per SM. It
/// has no compute, local or ingress rates: those stay at their defaults. Throws kBadInput where the
/// profile has no such path.
Node node_from_profile(const model::Profile& profile, const std::string& path, int warps = 4);

/// The GPUs of one run: `gpus`, of which `gpus_per_node` share an NVLink domain.
struct Cluster {
    Node node;
    int gpus = 2;
    int gpus_per_node = 0;  ///< 0: all in one domain

    bool same_domain(int a, int b) const {
        return gpus_per_node <= 0 || a / gpus_per_node == b / gpus_per_node;
    }
};

}  // namespace xstage::sim
