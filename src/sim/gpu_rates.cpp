// The fluid part of a GPU: who drains how fast, who may issue how fast, and until when.

#include <algorithm>

#include "sim/gpu.hpp"

namespace xstage::sim {

void GpuEngine::find_rates() {
    bool network = false;
    for (const int p : active_) {
        const Producer& producer = producers_[static_cast<std::size_t>(p)];
        network |= producer.pending[producer.front].channel == Channel::kNetwork;
    }
    share(Channel::kLink, node_.link_rate);
    if (network) share(Channel::kNetwork, node_.network_rate);
    apply_room();
    dirty_ = false;
}

/// Max-min fair, by weight: first among the groups that want to send, then among the producers of a group. A
/// producer with a backlog wants all it can get, another one what it is issuing.
void GpuEngine::share(Channel channel, double capacity) {
    std::fill(group_demand_.begin(), group_demand_.end(), 0.0);
    std::fill(group_weight_.begin(), group_weight_.end(), 0.0);
    for (const int p : active_) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        if (producer.pending[producer.front].channel != channel) continue;
        const double wanted = producer.queued > 0 ? kUnlimited : producer.rate;
        producer.out = std::min(wanted, producer.cap);  // the demand, until it is granted
        group_demand_[static_cast<std::size_t>(producer.group)] += producer.out;
        group_weight_[static_cast<std::size_t>(producer.group)] += producer.weight;
    }
    if (capacity == kUnlimited) return;

    const std::size_t helpers = pools_.size() - 1;
    const auto weight = [&](std::size_t g) {
        return g == helpers ? static_cast<double>(helpers) : 1.0;
    };
    double left = capacity, weights = 0;
    for (std::size_t g = 0; g < pools_.size(); ++g) {
        group_grant_[g] = -1;
        if (group_weight_[g] > 0) weights += weight(g);
    }
    for (bool changed = true; changed;) {
        changed = false;
        const double level = weights > 0 ? left / weights : 0;
        for (std::size_t g = 0; g < pools_.size(); ++g) {
            if (group_weight_[g] == 0 || group_grant_[g] >= 0) continue;
            if (group_demand_[g] > level * weight(g)) continue;
            group_grant_[g] = kUnlimited;  // satisfied: its members keep their demands
            left = std::max(0.0, left - group_demand_[g]);
            weights -= weight(g);
            changed = true;
        }
    }
    for (std::size_t g = 0; g < pools_.size(); ++g) {
        if (group_grant_[g] < 0 && weights > 0) group_grant_[g] = left / weights * weight(g);
    }

    for (bool changed = true; changed;) {
        changed = false;
        for (const int p : active_) {
            Producer& producer = producers_[static_cast<std::size_t>(p)];
            const auto g = static_cast<std::size_t>(producer.group);
            if (producer.pending[producer.front].channel != channel || producer.settled) continue;
            if (group_grant_[g] == kUnlimited) {
                producer.settled = true;
            } else if (producer.out <= group_grant_[g] / group_weight_[g] * producer.weight) {
                producer.settled = changed = true;
                group_grant_[g] -= producer.out;
                group_weight_[g] -= producer.weight;
            }
        }
    }
    for (const int p : active_) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        if (producer.pending[producer.front].channel != channel) continue;
        const auto g = static_cast<std::size_t>(producer.group);
        if (!producer.settled) producer.out = group_grant_[g] / group_weight_[g] * producer.weight;
        producer.settled = false;
    }
}

/// A producer whose room is full issues as fast as it drains. Where it is the shared room that is
/// full, what the others give back of it goes to those that wait, in equal parts.
void GpuEngine::apply_room() {
    for (Pool& pool : pools_) pool = Pool{};
    for (const int p : active_) {
        const Producer& producer = producers_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(producer.group)];
        pool.used += std::max(0.0, producer.queued - node_.private_room);
        pool.issuers += producer.store == Store::kIssuing;
    }
    for (Pool& pool : pools_) pool.full = pool.used > node_.shared_room - kTinyBytes;
    for (const int p : active_) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(producer.group)];
        const bool issuing = producer.store == Store::kIssuing;
        producer.in = issuing ? producer.rate : 0;
        producer.waits = false;
        if (producer.helper) continue;
        const double room = node_.private_room + node_.shared_cap;
        if (issuing && producer.rate > producer.out) {
            if (producer.queued > room - kTinyBytes) {
                producer.in = producer.out;
            } else if (pool.full && producer.queued > node_.private_room - kTinyBytes) {
                producer.waits = true;
                ++pool.blocked;
            }
        }
        if (!producer.waits && producer.queued > node_.private_room && producer.out > producer.in) {
            pool.released += producer.out - producer.in;
        }
    }
    queued_ = 0;
    for (const int p : active_) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        Pool& pool = pools_[static_cast<std::size_t>(producer.group)];
        if (producer.waits) {
            producer.in = std::min(producer.rate, producer.out + pool.released / pool.blocked);
        }
        const double net = producer.in - producer.out;
        const double over = producer.queued - node_.private_room;
        if (over > 0 || (over > -kTinyBytes && net > 0)) pool.growth += net;
        queued_ += producer.queued;
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
        const Producer& producer = producers_[static_cast<std::size_t>(p)];
        const bool issuing = producer.store == Store::kIssuing;
        if (issuing && producer.in > 0) reach(producer.left, producer.in);
        const double net = producer.in - producer.out;
        const double over = producer.queued - node_.private_room;
        const Pool& pool = pools_[static_cast<std::size_t>(producer.group)];
        if (net > 0 && !producer.helper) {
            if (producer.queued < room - kTinyBytes) reach(room - producer.queued, net);
            if (over < -kTinyBytes) reach(-over, net);
        } else if (net < 0) {
            if (producer.queued > 0) reach(producer.queued, -net);
            if (over > kTinyBytes && pool.issuers > 0) reach(over, -net);
        }
        const Burst& front = producer.pending[producer.front];
        const bool partial = issuing && producer.front + 1 == producer.pending.size();
        if (!partial && producer.out > 0) reach(front.bytes - front.drained, producer.out);
    }
    for (const Pool& pool : pools_) {
        if (pool.growth > 0 && !pool.full) reach(node_.shared_room - pool.used, pool.growth);
    }
    return dt;
}

void GpuEngine::advance(double dt) {
    queued_ = 0;
    for (const int p : active_) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        Burst& front = producer.pending[producer.front];
        if (front.drain_start < 0) front.drain_start = now_;
        producer.left -= producer.in * dt;
        producer.queued = std::max(0.0, producer.queued + (producer.in - producer.out) * dt);
        front.drained += producer.out * dt;
        queued_ += producer.queued;
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
        const Producer& producer = producers_[static_cast<std::size_t>(p)];
        const Burst& burst = producer.pending[producer.front];
        const double rate = producer.queued > 0 ? each : std::min(each, producer.rate);
        for (const auto& [gpu, share] : program_.routes()[static_cast<std::size_t>(burst.route)]) {
            per_gpu[static_cast<std::size_t>(gpu)] += rate * share;
        }
    }
}

void GpuEngine::throttle(const std::vector<double>& per_producer) {
    if (throttle_.empty() && per_producer.empty()) return;
    throttle_ = per_producer;
    for (const int p : active_) new_front(producers_[static_cast<std::size_t>(p)]);
    dirty_ = true;
}

}  // namespace xstage::sim
