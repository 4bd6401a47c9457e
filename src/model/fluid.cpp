#include "model/fluid.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>

#include "xstage/error.hpp"

namespace xstage::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-6;  // bytes or cycles below which a quantity is zero
constexpr double kDust = 1e-3;     // bytes that rounding may lose over a long run

// Two classes at a time in the width that every target has. The loop over events has no branch on
// a class's state: which one comes next is as good as random, and a wrong guess costs more than
// all the arithmetic of an event.
using Pair = double __attribute__((vector_size(16)));
using Mask = std::int64_t __attribute__((vector_size(16)));

constexpr Pair both(double x) {
    return Pair{x, x};
}
inline Pair lesser(Pair a, Pair b) {
    return a < b ? a : b;
}
inline bool any(Mask m) {
    return (m[0] | m[1]) != 0;
}

template <std::size_t P>
struct Lanes {
    std::array<Pair, P> pair{};

    Lanes() = default;
    explicit Lanes(double x) { pair.fill(both(x)); }
    double get(std::size_t k) const { return pair[k / 2][k % 2]; }
    void set(std::size_t k, double x) { pair[k / 2][k % 2] = x; }
};

struct Pending {
    double target;  // of bytes drained by the producer since the start
    std::size_t burst;
};

template <std::size_t P>
class Simulation {
  public:
    Simulation(const FluidModel& model, std::span<const FluidBurst> bursts, FluidResult& result,
               Occupancy* occupancy)
        : model_(model),
          bursts_(bursts),
          result_(result),
          occupancy_(occupancy),
          classes_(model.classes.size()) {
        for (double factor : model.turns) lasting_.push_back(std::pow(factor, model.lasting));
        for (std::size_t k = 0; k < classes_; ++k) {
            const ProducerClass& c = model.classes[k];
            count_.set(k, c.count), weight_.set(k, c.weight), room_.set(k, c.room);
            turn_[k] = static_cast<std::size_t>(c.turn);
            start_at_.set(k, 0);
        }
        share_ = share_after_ = weight_;
        waiting_ = classes_;
    }

    void run() {
        start_due();
        while (true) {
            find_rates();
            const double step = next_event();
            if (step == kNever) break;
            advance(step);
            if (occupancy_ != nullptr) occupancy_->emplace_back(now_, in_flight());
        }
    }

  private:
    void find_rates() {
        const Pair egress = both(model_.egress), nothing = both(kNothing), zero{};
        std::array<Pair, P> limit, open, grant;
        Pair claims{};
        for (std::size_t i = 0; i < P; ++i) {
            const Pair offered = lesser(supply_.pair[i], egress);
            limit[i] = (queue_.pair[i] > nothing ? egress : offered) * cost_.pair[i];
            open[i] = limit[i] > zero ? count_.pair[i] * share_.pair[i] : zero;
            grant[i] = zero;
            claims += open[i];
        }
        // Weighted max-min: whoever wants less than the fair share gets what it wants.
        double left = model_.drain;
        for (std::size_t round = 0; round <= 2 * P; ++round) {
            const double total = claims[0] + claims[1];
            if (total <= 0) break;
            const Pair level = both(std::max(left, 0.0) / total);
            Pair taken{};
            Mask content{};
            claims = zero;
            for (std::size_t i = 0; i < P; ++i) {
                const Pair fair = share_.pair[i] * level;
                const Mask is_open = open[i] > zero;
                const Mask wants_less = is_open & (limit[i] <= fair);
                grant[i] = is_open ? lesser(limit[i], fair) : grant[i];
                taken += wants_less ? count_.pair[i] * limit[i] : zero;
                open[i] = wants_less ? zero : open[i];
                claims += open[i];
                content |= wants_less;
            }
            if (!any(content)) break;
            left -= taken[0] + taken[1];
        }
        for (std::size_t i = 0; i < P; ++i) {
            out_.pair[i] = grant[i] * inverse_cost_.pair[i];
            const Mask full =
                (queue_.pair[i] >= room_.pair[i] - nothing) & (supply_.pair[i] > out_.pair[i]);
            in_.pair[i] = full ? out_.pair[i] : supply_.pair[i];
        }
    }

    double next_event() {
        const Pair zero{}, one = both(1), never = both(kNever), still = both(1e-12);
        Pair soonest = never;
        for (std::size_t i = 0; i < P; ++i) {
            const Pair in = in_.pair[i], out = out_.pair[i], queue = queue_.pair[i];
            const Pair net = in - out;
            Pair when = start_at_.pair[i] - both(now_);
            const Mask issues = in > zero;
            when = lesser(when, issues ? left_.pair[i] / (issues ? in : one) : never);
            const Mask fills = net > still;
            const Mask empties = (net < -still) & (queue > both(kNothing));
            const Pair way = fills ? room_.pair[i] - queue : queue;
            const Pair speed = fills ? net : (empties ? -net : one);
            when = lesser(when, (fills | empties) ? way / speed : never);
            // A turn lasts equally long whoever holds it: it counts the fair share, not bytes.
            turn_rate_.pair[i] = out * weight_.pair[i] / share_.pair[i];
            const Mask turns = (turn_left_.pair[i] > zero) & (out > zero);
            when = lesser(when,
                          turns ? turn_left_.pair[i] / (turns ? turn_rate_.pair[i] : one) : never);
            soonest = lesser(soonest, when);
        }
        return std::max(std::min(soonest[0], soonest[1]), 0.0);
    }

    void advance(double step) {
        now_ += step;
        const Pair zero{}, nothing = both(kNothing), dt = both(step), now = both(now_ + kNothing);
        Mask drained{}, finished{}, starts{};
        for (std::size_t i = 0; i < P; ++i) {
            const Pair before = queue_.pair[i], sent = in_.pair[i] * dt;
            Pair queue = before + sent - out_.pair[i] * dt;
            queue = queue <= nothing ? zero : queue;
            queue_.pair[i] = queue;
            left_.pair[i] -= sent;
            drained_.pair[i] += before + sent - queue;
            const Mask turns = turn_left_.pair[i] > zero;
            const Pair turn = turn_left_.pair[i] - turn_rate_.pair[i] * dt;
            const Mask over = turns & (turn <= nothing);
            turn_left_.pair[i] = turns ? (over ? zero : turn) : turn_left_.pair[i];
            share_.pair[i] = over ? share_after_.pair[i] : share_.pair[i];
            drained |= target_.pair[i] <= drained_.pair[i] + both(kDust);
            finished |= (supply_.pair[i] > zero) & (left_.pair[i] <= nothing);
            starts |= start_at_.pair[i] <= now;
        }
        if (any(drained)) note_due(step);
        if (any(finished)) finish_due();
        if (any(starts) || any(finished)) start_due();
    }

    void note_due(double step) {
        for (std::size_t k = 0; k < classes_; ++k) {
            const double drained = drained_.get(k), out = out_.get(k);
            std::deque<Pending>& pending = pending_[k];
            while (!pending.empty() && pending.front().target <= drained + kDust) {
                const double beyond = drained - pending.front().target;
                note_drained(pending.front().burst,
                             now_ - (out > 0 ? std::clamp(beyond / out, 0.0, step) : 0));
                pending.pop_front();
            }
            target_.set(k, pending.empty() ? kNever : pending.front().target);
        }
    }

    void note_drained(std::size_t burst, double when) {
        result_.drained[burst] = std::max(result_.drained[burst], when);
    }

    void finish_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (supply_.get(k) <= 0 || left_.get(k) > kNothing) continue;
            const std::size_t j = burst_[k];
            const double took = now_ - began_[k] - apart_[k], queue = queue_.get(k);
            result_.issue[j * classes_ + k] = static_cast<float>(took);
            result_.ended[j] = std::max(result_.ended[j], now_);
            result_.queued[j] = std::max(result_.queued[j], static_cast<float>(in_flight()));
            if (queue > 0) {
                pending_[k].push_back({drained_.get(k) + queue, j});
                target_.set(k, pending_[k].front().target);
            } else {
                note_drained(j, now_);
            }
            stall_[k] = std::max(0.0, took - free_[k]);
            supply_.set(k, 0), left_.set(k, 0), turn_left_.set(k, 0);
            share_.set(k, share_after_.get(k));
            turn_[k] = static_cast<std::size_t>(model_.next_turn[turn_[k]]);
            burst_[k] = j + 1;
            result_.finished[k] = now_ - apart_[k] / 2;
            if (burst_[k] == bursts_.size()) continue;
            const double gap = bursts_[j].gap;
            if (!model_.gap_from_all) {
                // Some of the class end sooner and some later than its middle, and begin again so.
                const double next = std::min(model_.spread * stall_[k], gap);
                start_at_.set(k, std::max(now_, now_ - apart_[k] / 2 + gap - next / 2));
                apart_[k] = next;
            } else if (--waiting_ == 0) {
                waiting_ = classes_;
                for (std::size_t i = 0; i < classes_; ++i) start_at_.set(i, now_ + gap);
            }
        }
    }

    double in_flight() const {
        Pair sum{};
        for (std::size_t i = 0; i < P; ++i) sum += count_.pair[i] * queue_.pair[i];
        return sum[0] + sum[1];
    }

    void start_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (start_at_.get(k) > now_ + kNothing) continue;
            const FluidBurst& burst = bursts_[burst_[k]];
            // Warps that a stall has pulled apart no longer compete for the SM's own issue rate.
            const double together = std::clamp(1 - stall_[k] / burst.issue, 0.0, 1.0);
            free_[k] = burst.issue_apart + (burst.issue - burst.issue_apart) * together;
            start_at_.set(k, kNever);
            began_[k] = now_;
            left_.set(k, burst.bytes);
            supply_.set(k, burst.bytes / (free_[k] + apart_[k]));
            cost_.set(k, burst.cost), inverse_cost_.set(k, 1 / burst.cost);
            turn_left_.set(k, model_.turn_bytes);
            share_after_.set(k, weight_.get(k) * lasting_[turn_[k]]);
            share_.set(k, model_.turn_bytes > 0 ? weight_.get(k) * model_.turns[turn_[k]]
                                                : weight_.get(k));
            result_.begun[burst_[k]] = std::min(result_.begun[burst_[k]], now_);
        }
    }

    Lanes<P> count_, weight_{1.0}, room_, share_, share_after_, cost_{1.0}, inverse_cost_{1.0};
    Lanes<P> queue_, left_, supply_, in_, out_, drained_, turn_left_, turn_rate_;
    Lanes<P> start_at_{kNever}, target_{kNever};
    const FluidModel& model_;
    std::span<const FluidBurst> bursts_;
    FluidResult& result_;
    Occupancy* occupancy_;
    std::size_t classes_;
    std::size_t waiting_ = 0;
    std::vector<double> lasting_;
    double now_ = 0;
    std::array<double, 2 * P> began_{}, stall_{}, free_{}, apart_{};
    std::array<std::size_t, 2 * P> turn_{}, burst_{};
    std::array<std::deque<Pending>, 2 * P> pending_;
};

}  // namespace

FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts,
                      Occupancy* occupancy) {
    const std::size_t classes = model.classes.size();
    if (classes == 0 || classes > 8 || !(model.drain > 0) || !(model.egress > 0)) {
        throw Error(ErrorKind::kBadInput,
                    "fluid model: 1 to 8 classes and positive rates expected");
    }
    FluidResult result;
    result.classes = classes;
    result.issue.resize(bursts.size() * classes);
    result.queued.resize(bursts.size());
    result.begun.assign(bursts.size(), kNever);
    result.ended.resize(bursts.size());
    result.drained.resize(bursts.size());
    result.finished.resize(classes);
    if (bursts.empty()) return result;
    if (classes <= 2) {
        Simulation<1>(model, bursts, result, occupancy).run();
    } else if (classes <= 6) {
        Simulation<3>(model, bursts, result, occupancy).run();
    } else {
        Simulation<4>(model, bursts, result, occupancy).run();
    }
    return result;
}

}  // namespace xstage::model
