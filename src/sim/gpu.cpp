#include "sim/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "xstage/error.hpp"

namespace xstage::sim {
namespace {
/// Stands in for an issue that takes no time, so that no rate is infinite.
constexpr double kMaxRate = 1e7;
}  // namespace

std::string_view role_name(Role role) {
    switch (role) {
        case Role::kTile:
            return "tile";
        case Role::kLinear1:
            return "linear1";
        case Role::kLinear2:
            return "linear2";
        case Role::kDispatch:
            return "dispatch";
        case Role::kBurst:
            return "burst";
        case Role::kCopy:
            return "copy";
    }
    return "";
}

void Arrivals::add(const Route& route, double bytes, double from_ns, double to_ns) {
    if (gpus_ == 0) return;
    const int first = static_cast<int>(from_ns / slice_ns_);
    const int last = std::max(first, static_cast<int>(to_ns / slice_ns_));
    const auto needed = static_cast<std::size_t>(last + 1) * static_cast<std::size_t>(gpus_);
    if (bytes_.size() < needed) bytes_.resize(std::max(needed, bytes_.size() * 2));
    const double span = to_ns - from_ns;
    for (int s = first; s <= last; ++s) {
        const double overlap =
            std::min(to_ns, (s + 1) * slice_ns_) - std::max(from_ns, s * slice_ns_);
        const double part = first == last || span <= 0 ? bytes : bytes * overlap / span;
        float* row = &bytes_[static_cast<std::size_t>(s) * static_cast<std::size_t>(gpus_)];
        for (const auto& [gpu, share] : route) row[gpu] += static_cast<float>(part * share);
    }
}

double Arrivals::at(int slice, int gpu) const {
    return slice < slices() ? bytes_[static_cast<std::size_t>(slice * gpus_ + gpu)] : 0;
}

GpuEngine::GpuEngine(const Node& node, int rank, Program& program, const Options& options)
    : node_(node),
      rank_(rank),
      program_(program),
      options_(options),
      producers_(static_cast<std::size_t>(program.producers())),
      flows_(producers_.size()),
      parked_(static_cast<std::size_t>(program.gates())) {
    const int helpers_from = program.first_helper();
    const std::vector<int> group = node_.group_of(helpers_from);
    std::vector<int> members(static_cast<std::size_t>(node_.group_count()));
    // One more group for the helpers: they have no room of their own and take half of a link that
    // all groups want.
    pools_.resize(static_cast<std::size_t>(node_.group_count()) + 1);
    groups_.resize(pools_.size());
    group_weight_.resize(pools_.size());
    if (node_.halves.empty()) node_.halves = {node_.group_count()};
    if (std::accumulate(node_.halves.begin(), node_.halves.end(), 0) != node_.group_count()) {
        throw Error(ErrorKind::kBadInput, "node: the halves must have all groups between them");
    }
    const std::size_t halves = node_.halves.size();
    halves_.resize(halves + 1, {0, 1, 0, false});
    if (halves > 1) halves_.front().weight = node_.balance;
    halves_.back().weight = static_cast<double>(halves - 1) + halves_.front().weight;
    if (options_.slice_ns > 0) arrivals_ = Arrivals(options_.gpus, options_.slice_ns);
    route_bytes_.resize(program.routes().size());
    live_ = program.producers();
    for (int p = 0; p < live_; ++p) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        flow.helper = p >= helpers_from;
        flow.group = flow.helper ? node_.group_count() : group[static_cast<std::size_t>(p)];
        if (flow.helper) continue;
        // Groups count up and down in turn, so that a CTA's number says nothing of its weight.
        int& n = members[static_cast<std::size_t>(flow.group)];
        producer.place = flow.group % 2 == 0 ? n : -1 - n;
        ++n;
    }
    for (int p = 0; p < helpers_from; ++p) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        producer.members =
            members[static_cast<std::size_t>(flows_[static_cast<std::size_t>(p)].group)];
        if (producer.place < 0) producer.place += producer.members;
    }
    for (const int m : members) luck_.push_back(luck_of(m));
    for (int p = 0; p < program.producers(); ++p) claim(p);
}

void GpuEngine::set_timer(double time, int p, bool local) {
    timers_.push({time, sequence_++, p, local});
}

void GpuEngine::claim(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    if (!program_.claim(p, producer.next)) {
        producer.compute = Compute::kDone;
        --live_;
        return;
    }
    ++producer.claimed;
    const int gate = producer.next.gate;
    if (gate >= 0 && !program_.open(gate)) {
        producer.compute = Compute::kParked;
        producer.since = now_;
        parked_[static_cast<std::size_t>(gate)].push_back(p);
    } else {
        begin(p);
    }
}

void GpuEngine::open_gate(int gate) {
    if (gate < 0) return;
    std::vector<int> waiting;
    waiting.swap(parked_[static_cast<std::size_t>(gate)]);
    for (const int p : waiting) {
        Producer& producer = producers_[static_cast<std::size_t>(p)];
        producer.result.gate_ns += now_ - producer.since;
        begin(p);
    }
}

void GpuEngine::begin(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    producer.compute_start = now_;
    producer.compute = Compute::kHead;
    const double head = std::min(producer.next.free_ns, producer.next.compute_ns);
    if (head > 0 && must_wait(producer)) {
        set_timer(now_ + head, p, false);
    } else {
        producer.next.free_ns = 0;  // nothing is in the way: one timer for all of it
        head_over(p);
    }
}

/// Whether the step in the compute engine must not go on: its own or its pair's stores of the steps
/// before it are not accepted.
bool GpuEngine::must_wait(const Producer& producer) const {
    if (producer.accepted < producer.claimed - 1) return true;
    if (producer.next.pair < 0) return false;
    const Producer& pair = producers_[static_cast<std::size_t>(producer.next.pair)];
    return pair.accepted < producer.claimed - 1 && pair.accepted < pair.claimed;
}

void GpuEngine::head_over(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    if (must_wait(producer)) {
        producer.compute = Compute::kHeld;
        producer.since = now_;
    } else {
        body(p);
    }
}

void GpuEngine::body(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    producer.compute = Compute::kBody;
    const double rest = producer.next.compute_ns - producer.next.free_ns;
    if (rest > 0) {
        set_timer(now_ + rest, p, false);
    } else {
        compute_over(p);
    }
}

void GpuEngine::compute_over(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    const Step& step = producer.storing = producer.next;
    producer.result.busy_ns += step.compute_ns;
    producer.storing_start = producer.compute_start;
    producer.issue_start = now_;
    producer.part = 0;
    producer.ideal_ns = step.local_ns;
    for (int i = 0; i < step.parts; ++i) producer.ideal_ns += step.part[i].issue_ns;
    if (options_.record) {
        Span span;
        span.rank = rank_;
        span.producer = p;
        span.role = step.role;
        span.id = step.id;
        span.start_ns = producer.storing_start;
        span.issue_ns = now_;
        for (int i = 0; i < step.parts; ++i) span.bytes += step.part[i].bytes;
        producer.span = spans_.size();
        spans_.push_back(span);
    }
    if (step.local_ns > 0) {
        producer.store = Store::kLocal;
        set_timer(now_ + step.local_ns, p, true);
    } else {
        next_part(p);
    }
    claim(p);
}

void GpuEngine::next_part(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    Step& step = producer.storing;
    if (producer.part == step.parts) {
        accept(p);
        return;
    }
    const Part& part = step.part[producer.part++];
    Flow& flow = flows_[static_cast<std::size_t>(p)];
    producer.store = Store::kIssuing;
    flow.issuing = true;
    flow.left = part.bytes;
    flow.rate = std::min(kMaxRate, part.bytes / part.issue_ns);
    producer.pending.push_back({part.bytes, now_, part.cost, part.route, part.channel,
                                producer.part == step.parts, step, producer.span});
    result_.bytes_issued += part.bytes;
    activate(p);
    if (++flow.pending == 1) {
        flow.front_left = part.bytes;
        new_front(p);
    }
}

void GpuEngine::accept(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    const Step step = producer.storing;
    const double stall = std::max(0.0, now_ - producer.issue_start - producer.ideal_ns);
    producer.store = Store::kFree;
    producer.result.stall_ns += stall;
    producer.result.end_ns = now_;
    if (options_.record) {
        Span& span = spans_[producer.span];
        span.issued_ns = now_;
        span.stall_ns = stall;
        if (step.parts == 0) span.drained_ns = span.visible_ns = now_;
    }
    ++producer.accepted;
    for (const int q : {p, step.pair}) {
        if (q < 0) continue;
        Producer& held = producers_[static_cast<std::size_t>(q)];
        if (held.compute != Compute::kHeld || must_wait(held)) continue;
        held.result.held_ns += now_ - held.since;
        body(q);
    }
    open_gate(program_.accepted(step));
}

void GpuEngine::activate(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    dirty_ = true;
    if (!producer.active) {
        producer.active = true;
        active_.push_back(p);
    }
}

void GpuEngine::new_front(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    Flow& flow = flows_[static_cast<std::size_t>(p)];
    flow.cap = flow.helper ? kUnlimited : node_.producer_rate;
    if (flow.pending == 0) return;
    const Burst& burst = producer.pending[producer.front];
    flow.channel = burst.channel;
    flow.cost = burst.cost;
    if (!flow.helper) {
        if (producer.since_turn > 0 && producer.since_turn >= node_.turn_bytes) {
            ++producer.turn;
            producer.since_turn = 0;
        }
        flow.weight = node_.weight(luck_[static_cast<std::size_t>(flow.group)], producer.place,
                                   producer.turn, burst.bytes);
    }
    if (throttle_.empty()) return;
    for (const auto& [gpu, share] : program_.routes()[static_cast<std::size_t>(burst.route)]) {
        if (share > 0) flow.cap = std::min(flow.cap, throttle_[static_cast<std::size_t>(gpu)]);
    }
}

void GpuEngine::pop_front(int p) {
    Producer& producer = producers_[static_cast<std::size_t>(p)];
    Flow& flow = flows_[static_cast<std::size_t>(p)];
    const Burst burst = producer.pending[producer.front++];
    producer.since_turn += burst.bytes;
    if (--flow.pending == 0) {
        producer.pending.clear();
        producer.front = 0;
    } else {
        Burst& next = producer.pending[producer.front];
        next.drain_start = now_;
        flow.front_left = next.bytes;
    }
    new_front(p);
    const Route& route = program_.routes()[static_cast<std::size_t>(burst.route)];
    arrivals_.add(route, burst.bytes, burst.drain_start, now_);
    result_.bytes_drained += burst.bytes;
    route_bytes_[static_cast<std::size_t>(burst.route)] += burst.bytes;
    result_.drained_ns = now_;
    const double latency =
        node_.visible_ns + (burst.channel == Channel::kNetwork ? node_.network_latency_ns : 0);
    visible_ = std::max(visible_, now_ + latency);
    if (options_.record) {
        spans_[burst.span].drained_ns = now_;
        spans_[burst.span].visible_ns = std::max(spans_[burst.span].visible_ns, now_ + latency);
    }
    if (burst.last) open_gate(program_.drained(burst.step));
}

void GpuEngine::settle() {
    bool drained = false;
    for (std::size_t i = 0; i < active_.size(); ++i) {
        const int p = active_[i];
        Flow& flow = flows_[static_cast<std::size_t>(p)];
        if (flow.queued < kTinyBytes) flow.queued = 0;
        if (flow.issuing && flow.left < kTinyBytes) {
            flow.issuing = false;
            producers_[static_cast<std::size_t>(p)].store = Store::kFree;
            next_part(p);
        }
        // The burst that is being issued is the last one pending and stays until it is all issued.
        while (flow.pending > 0 && !flow.front_partial() &&
               (flow.queued == 0 || flow.front_left < kTinyBytes)) {
            pop_front(p);
        }
        drained |= flow.pending == 0;
    }
    dirty_ = true;
    if (!drained) return;
    std::erase_if(active_, [&](int p) {
        if (flows_[static_cast<std::size_t>(p)].pending > 0) return false;
        producers_[static_cast<std::size_t>(p)].active = false;
        return true;
    });
}

void GpuEngine::run(double until_ns) {
    while (!done()) {
        if (dirty_) find_rates();
        const double fluid = step_length();
        const double timer = timers_.empty() ? kUnlimited : timers_.top().time - now_;
        const double dt = std::max(0.0, std::min(fluid, timer));
        if (dt == kUnlimited) {
            throw Error(ErrorKind::kBadInput,
                        fmt::format("GPU {} stands still at {:.0f} ns: tasks wait for each other",
                                    rank_, now_));
        }
        if (now_ + dt > until_ns) {
            advance(until_ns - now_);
            now_ = until_ns;
            return;
        }
        ++events_;
        advance(dt);
        now_ = timer <= fluid ? timers_.top().time : now_ + dt;
        if (fluid <= timer) settle();
        while (!timers_.empty() && timers_.top().time <= now_) {
            const Timer due = timers_.top();
            timers_.pop();
            if (due.local) {
                producers_[static_cast<std::size_t>(due.producer)].store = Store::kFree;
                next_part(due.producer);
            } else if (producers_[static_cast<std::size_t>(due.producer)].compute ==
                       Compute::kHead) {
                head_over(due.producer);
            } else {
                compute_over(due.producer);
            }
        }
        if (options_.record) result_.occupancy.push_back({now_, queued_});
    }
}

RankResult GpuEngine::take_result() {
    for (Producer& producer : producers_) {
        result_.issued_ns = std::max(result_.issued_ns, producer.result.end_ns);
        result_.producers.push_back(producer.result);
    }
    result_.visible_ns = visible_;
    result_.end_ns = result_.bytes_drained > 0
                         ? std::max(result_.issued_ns, result_.drained_ns + node_.ack_ns)
                         : result_.issued_ns;
    return std::move(result_);
}

}  // namespace xstage::sim
