#include "model/fluid.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "xstage/error.hpp"

namespace xstage::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-6;  // bytes or cycles below which a quantity is zero
constexpr double kDust = 1e-3;     // bytes that rounding may lose over a long run

struct Pending {
    double target;  // of bytes drained by the producer since the start
    std::size_t burst;
};

// K is the padded class count: fixed-length loops vectorise.
template <int K>
class Simulation {
  public:
    Simulation(const FluidModel& model, std::span<const FluidBurst> bursts, FluidResult& result)
        : model_(model), bursts_(bursts), result_(result), classes_(model.classes.size()) {
        for (double factor : model.turns) lasting_.push_back(std::pow(factor, model.lasting));
        for (std::size_t k = 0; k < classes_; ++k) {
            const ProducerClass& c = model.classes[k];
            count_[k] = c.count, weight_[k] = c.weight, room_[k] = c.room, turn_[k] = c.turn;
            start_at_[k] = 0;
        }
        for (int k = 0; k < K; ++k) {
            share_[k] = weight_[k];
            cost_[k] = 1;
            if (static_cast<std::size_t>(k) >= classes_) start_at_[k] = kNever;
        }
        waiting_ = classes_;
    }

    void run() {
        start_due();
        while (true) {
            find_rates();
            const double step = next_event();
            if (step == kNever) break;
            advance(step);
            finish_due();
            start_due();
        }
    }

  private:
    void find_rates() {
        std::array<double, K> limit, grant;
        for (int k = 0; k < K; ++k) {
            limit[k] = (queue_[k] > kNothing ? model_.egress : std::min(supply_[k], model_.egress)) *
                       cost_[k];
            grant[k] = 0;
        }
        // Weighted max-min: whoever wants less than the fair share gets what it wants.
        double left = model_.drain;
        std::array<double, K> open;
        for (int k = 0; k < K; ++k) open[k] = limit[k] > 0 ? count_[k] * share_[k] : 0;
        for (int round = 0; round < K; ++round) {
            double sum = 0;
            for (int k = 0; k < K; ++k) sum += open[k];
            if (sum <= 0) break;
            const double level = std::max(left, 0.0) / sum;
            bool settled = true;
            for (int k = 0; k < K; ++k) {
                if (open[k] > 0 && limit[k] <= level * share_[k]) {
                    grant[k] = limit[k], left -= count_[k] * limit[k], open[k] = 0, settled = false;
                }
            }
            if (settled) {
                for (int k = 0; k < K; ++k) grant[k] = open[k] > 0 ? level * share_[k] : grant[k];
                break;
            }
        }
        for (int k = 0; k < K; ++k) {
            out_[k] = grant[k] / cost_[k];
            const bool full = queue_[k] >= room_[k] - kNothing && supply_[k] > out_[k];
            in_[k] = full ? out_[k] : supply_[k];
        }
    }

    double next_event() const {
        std::array<double, K> when;
        for (int k = 0; k < K; ++k) {
            const double net = in_[k] - out_[k];
            double t = start_at_[k] - now_;
            t = in_[k] > 0 ? std::min(t, left_[k] / in_[k]) : t;
            t = net > 1e-12 ? std::min(t, (room_[k] - queue_[k]) / net) : t;
            t = net < -1e-12 && queue_[k] > kNothing ? std::min(t, -queue_[k] / net) : t;
            t = turn_left_[k] > 0 && out_[k] > 0 ? std::min(t, turn_left_[k] / turn_rate(k)) : t;
            when[k] = t;
        }
        double step = kNever;
        for (int k = 0; k < K; ++k) step = std::min(step, when[k]);
        return step == kNever ? step : std::max(step, 0.0);
    }

    // A turn lasts for the same time whoever holds it: it counts the fair share, not the bytes.
    double turn_rate(int k) const { return out_[k] * weight_[k] / share_[k]; }

    void advance(double step) {
        now_ += step;
        for (int k = 0; k < K; ++k) {
            const double before = queue_[k];
            queue_[k] = std::max(0.0, queue_[k] + (in_[k] - out_[k]) * step);
            queue_[k] = queue_[k] <= kNothing ? 0 : queue_[k];
            left_[k] = supply_[k] > 0 ? left_[k] - in_[k] * step : 0;
            drained_[k] += before + in_[k] * step - queue_[k];
            if (turn_left_[k] > 0) {
                turn_left_[k] -= turn_rate(k) * step;
                if (turn_left_[k] <= kNothing) {
                    turn_left_[k] = 0;
                    share_[k] = weight_[k] * lasting_[turn_[k]];
                }
            }
        }
        for (std::size_t k = 0; k < classes_; ++k) {
            while (!pending_[k].empty() && pending_[k].front().target <= drained_[k] + kDust) {
                const Pending& p = pending_[k].front();
                const double late =
                    out_[k] > 0 ? std::clamp((drained_[k] - p.target) / out_[k], 0.0, step) : 0;
                note_drained(p.burst, now_ - late);
                pending_[k].pop_front();
            }
        }
    }

    void note_drained(std::size_t burst, double when) {
        result_.drained[burst] = std::max(result_.drained[burst], when);
    }

    void finish_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (supply_[k] <= 0 || left_[k] > kNothing) continue;
            const std::size_t j = burst_[k];
            const double took = now_ - began_[k] - apart_[k];
            result_.issue[j * classes_ + k] = static_cast<float>(took);
            result_.ended[j] = std::max(result_.ended[j], now_);
            double in_flight = 0;
            for (std::size_t i = 0; i < classes_; ++i) in_flight += count_[i] * queue_[i];
            result_.queued[j] = std::max(result_.queued[j], static_cast<float>(in_flight));
            if (queue_[k] > 0) {
                pending_[k].push_back({drained_[k] + queue_[k], j});
            } else {
                note_drained(j, now_);
            }
            stall_[k] = std::max(0.0, took - free_[k]);
            supply_[k] = 0;
            turn_left_[k] = 0;
            share_[k] = weight_[k] * lasting_[turn_[k]];
            turn_[k] = model_.next_turn[turn_[k]];
            burst_[k] = j + 1;
            result_.finished[k] = now_ - apart_[k] / 2;
            if (burst_[k] == bursts_.size()) continue;
            if (!model_.gap_from_all) {
                // Some of the class end sooner and some later than its middle, and begin again so.
                const double next = std::min(model_.spread * stall_[k], bursts_[j].gap);
                start_at_[k] = std::max(now_, now_ - apart_[k] / 2 + bursts_[j].gap - next / 2);
                apart_[k] = next;
            } else if (--waiting_ == 0) {
                waiting_ = classes_;
                for (std::size_t i = 0; i < classes_; ++i) start_at_[i] = now_ + bursts_[j].gap;
            }
        }
    }

    void start_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (start_at_[k] > now_ + kNothing) continue;
            const FluidBurst& burst = bursts_[burst_[k]];
            // Warps that a stall has pulled apart no longer compete for the SM's own issue rate.
            const double together = std::clamp(1 - stall_[k] / burst.issue, 0.0, 1.0);
            const double free =
                burst.issue_apart + (burst.issue - burst.issue_apart) * together;
            start_at_[k] = kNever;
            began_[k] = now_;
            left_[k] = burst.bytes;
            free_[k] = free;
            supply_[k] = burst.bytes / (free + apart_[k]);
            cost_[k] = burst.cost;
            turn_left_[k] = model_.turn_bytes;
            share_[k] = weight_[k] * (model_.turn_bytes > 0 ? model_.turns[turn_[k]] : 1);
            result_.begun[burst_[k]] = std::min(result_.begun[burst_[k]], now_);
        }
    }

    const FluidModel& model_;
    std::span<const FluidBurst> bursts_;
    FluidResult& result_;
    std::size_t classes_;
    std::size_t waiting_ = 0;
    std::vector<double> lasting_;
    double now_ = 0;
    std::array<double, K> count_{}, weight_{}, room_{}, share_{}, cost_{};
    std::array<double, K> queue_{}, left_{}, supply_{}, in_{}, out_{}, drained_{};
    std::array<double, K> start_at_{}, began_{}, stall_{}, free_{}, apart_{}, turn_left_{};
    std::array<int, K> turn_{};
    std::array<std::size_t, K> burst_{};
    std::array<std::deque<Pending>, K> pending_;
};

}  // namespace

FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts) {
    const std::size_t classes = model.classes.size();
    if (classes == 0 || classes > 16 || !(model.drain > 0) || !(model.egress > 0)) {
        throw Error(ErrorKind::kBadInput, "fluid model: 1 to 16 classes and positive rates expected");
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
    if (classes == 1) {
        Simulation<1>(model, bursts, result).run();
    } else if (classes <= 6) {
        Simulation<6>(model, bursts, result).run();
    } else if (classes <= 8) {
        Simulation<8>(model, bursts, result).run();
    } else {
        Simulation<16>(model, bursts, result).run();
    }
    return result;
}

}  // namespace xstage::model
