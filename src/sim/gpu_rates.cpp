// The fluid part of a GPU: who drains how fast, who may issue how fast, and until when.

#include <algorithm>

#include "sim/gpu.hpp"

namespace xstage::sim {

void GpuEngine::find_rates() {
    bool network = false;
    for (const int p : active_) {
        const Flow& flow = flows_[static_cast<std::size_t>(p)];
        network |= flow.channel == Channel::kNetwork;
    }
    share(Channel::kLink, node_.link_rate);
    if (network) share(Channel::kNetwork, node_.network_rate);
    apply_room();
    dirty_ = false;
}

/// Max-min fair, by weight.
void GpuEngine::fill(std::span<Share> shares, double capacity) {
    double left = capacity, weights = 0;
    for (Share& share : shares) {
        share.grant = capacity == kUnlimited ? kUnlimited : -1;
        if (share.asks) weights += share.weight;
    }
    if (capacity == kUnlimited) return;
    for (bool changed = true; changed;) {
        changed = false;
        const double level = weights > 0 ? left / weights : 0;
        for (Share& share : shares) {
            if (!share.asks || share.grant >= 0 || share.demand > level * share.weight) continue;
            share.grant = kUnlimited;
            left = std::max(0.0, left - share.demand);
            weights -= share.weight;
            changed = true;
        }
    }
    for (Share& share : shares) {
        if (share.grant < 0 && weights > 0) share.grant = left / weights * share.weight;
    }
}

/// Demands and grants are in link time. First among the halves that want to send, then among the
/// groups of a half, then among the producers of a group. A producer with a backlog wants all it
/// can get, another one what it is issuing.
void GpuEngine::share(Channel channel, double capacity) {
    std::fill(groups_.begin(), groups_.end(), Share{0, 1, 0, false});
    std::fill(group_weight_.begin(), group_weight_.end(), 0.0);
    for (const int p : active_) {
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        if (flow.channel != channel) continue;
        const double wanted = flow.queued > 0 ? kUnlimited : flow.rate;
        flow.out = std::min(wanted, flow.cap) * flow.cost;  // the demand, until it is granted
        Share& group = groups_[static_cast<std::size_t>(flow.group)];
        group.demand += flow.out;
        group.asks = true;
        group_weight_[static_cast<std::size_t>(flow.group)] += flow.weight;
    }
    const std::span<Share> groups(groups_);
    std::size_t at = 0;
    for (std::size_t h = 0; h < halves_.size(); ++h) {
        const std::size_t count =
            h + 1 < halves_.size() ? static_cast<std::size_t>(node_.halves[h]) : 1;
        halves_[h].demand = 0;
        halves_[h].asks = false;
        for (const Share& group : groups.subspan(at, count)) {
            halves_[h].demand += group.demand;
            halves_[h].asks |= group.asks;
        }
        at += count;
    }
    fill(halves_, capacity);
    at = 0;
    for (std::size_t h = 0; h < halves_.size(); ++h) {
        const std::size_t count =
            h + 1 < halves_.size() ? static_cast<std::size_t>(node_.halves[h]) : 1;
        if (halves_[h].asks) fill(groups.subspan(at, count), halves_[h].grant);
        at += count;
    }

    for (bool changed = true; changed;) {
        changed = false;
        for (const int p : active_) {
            Flow& flow = flows_[static_cast<std::size_t>(p)];
            const auto g = static_cast<std::size_t>(flow.group);
            if (flow.channel != channel || flow.settled) continue;
            if (groups_[g].grant == kUnlimited) {
                flow.settled = true;
            } else if (flow.out <= groups_[g].grant / group_weight_[g] * flow.weight) {
                flow.settled = changed = true;
                groups_[g].grant -= flow.out;
                group_weight_[g] -= flow.weight;
            }
        }
    }
    for (const int p : active_) {
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        if (flow.channel != channel) continue;
        const auto g = static_cast<std::size_t>(flow.group);
        if (!flow.settled) flow.out = groups_[g].grant / group_weight_[g] * flow.weight;
        flow.out /= flow.cost;
        flow.settled = false;
    }
}

/// Rooms hold bytes at their cost on the link: a pitch that leaves part of the link idle leaves the
/// buffers of that part idle, too. A producer whose room is full issues as fast as it drains. Where
/// it is the shared room that is full, what the others give back of it goes to those that wait, in
/// equal parts.
void GpuEngine::apply_room() {
    for (Pool& pool : pools_) pool = Pool{};
    for (const int p : active_) {
        const Flow& flow = flows_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(flow.group)];
        pool.used += std::max(0.0, flow.load() - node_.private_room);
        pool.issuers += flow.issuing;
    }
    for (Pool& pool : pools_) pool.full = pool.used > node_.shared_room - kTinyBytes;
    for (const int p : active_) {
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(flow.group)];
        const bool issuing = flow.issuing;
        flow.in = issuing ? flow.rate : 0;
        flow.waits = false;
        if (flow.helper) continue;
        const double room = node_.private_room + node_.shared_cap;
        if (issuing && flow.rate > flow.out) {
            if (flow.load() > room - kTinyBytes) {
                flow.in = flow.out;
            } else if (pool.full && flow.load() > node_.private_room - kTinyBytes) {
                flow.waits = true;
                ++pool.blocked;
            }
        }
        if (!flow.waits && flow.load() > node_.private_room && flow.out > flow.in) {
            pool.released += (flow.out - flow.in) * flow.cost;
        }
    }
    queued_ = 0;
    for (const int p : active_) {
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(flow.group)];
        if (flow.waits) {
            flow.in = std::min(flow.rate, flow.out + pool.released / pool.blocked / flow.cost);
        }
        const double net = (flow.in - flow.out) * flow.cost;
        const double over = flow.load() - node_.private_room;
        if (over > 0 || (over > -kTinyBytes && net > 0)) pool.growth += net;
        queued_ += flow.queued;
    }
    result_.peak_bytes = std::max(result_.peak_bytes, queued_);
}

/// The time until some rate changes.
double GpuEngine::step_length() const {
    double dt = kUnlimited;
    const auto reach = [&](double distance, double speed) {
        if (distance < dt * speed) dt = distance / speed;
    };
    const double room = node_.private_room + node_.shared_cap;
    for (const int p : active_) {
        const Flow& flow = flows_[static_cast<std::size_t>(p)];
        const bool issuing = flow.issuing;
        if (issuing && flow.in > 0) reach(flow.left, flow.in);
        const double net = (flow.in - flow.out) * flow.cost;
        const double over = flow.load() - node_.private_room;
        const Pool& pool = pools_[static_cast<std::size_t>(flow.group)];
        if (net > 0 && !flow.helper) {
            if (flow.load() < room - kTinyBytes) reach(room - flow.load(), net);
            if (over < -kTinyBytes) reach(-over, net);
        } else if (net < 0) {
            if (flow.queued > 0) reach(flow.load(), -net);
            if (over > kTinyBytes && pool.issuers > 0) reach(over, -net);
        }
        if (!flow.front_partial() && flow.out > 0) reach(flow.front_left, flow.out);
    }
    for (const Pool& pool : pools_) {
        if (pool.growth > 0 && !pool.full) reach(node_.shared_room - pool.used, pool.growth);
    }
    return dt;
}

void GpuEngine::advance(double dt) {
    queued_ = 0;
    for (const int p : active_) {
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        flow.left -= flow.in * dt;
        flow.queued = std::max(0.0, flow.queued + (flow.in - flow.out) * dt);
        flow.front_left -= flow.out * dt;
        queued_ += flow.queued;
    }
    for (Pool& pool : pools_) pool.used += pool.growth * dt;
    result_.peak_bytes = std::max(result_.peak_bytes, queued_);
}

double GpuEngine::fair_rate() const {
    const auto sharers = static_cast<double>(std::max<std::size_t>(1, active_.size()));
    return std::min(node_.link_rate / sharers, node_.producer_rate);
}

void GpuEngine::demand(std::vector<double>& per_gpu) const {
    std::fill(per_gpu.begin(), per_gpu.end(), 0.0);
    const double each = fair_rate();
    for (const int p : active_) {
        const Flow& flow = flows_[static_cast<std::size_t>(p)];
        const Producer& producer = producers_[static_cast<std::size_t>(p)];
        const Burst& burst = producer.pending[producer.front];
        const double rate = flow.queued > 0 ? each : std::min(each, flow.rate);
        for (const auto& [gpu, share] : program_.routes()[static_cast<std::size_t>(burst.route)]) {
            per_gpu[static_cast<std::size_t>(gpu)] += rate * share;
        }
    }
}

void GpuEngine::throttle(const std::vector<double>& per_producer) {
    if (throttle_.empty() && per_producer.empty()) return;
    throttle_ = per_producer;
    for (const int p : active_) new_front(p);
    dirty_ = true;
}

}  // namespace xstage::sim
