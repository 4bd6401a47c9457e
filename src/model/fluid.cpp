#include "model/fluid.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>

#include "model/order.hpp"
#include "xstage/error.hpp"

namespace xstage::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-6;  // bytes or cycles below which a quantity is zero
constexpr double kDust = 1e-3;     // bytes that rounding may lose over a long run

using Values = std::array<double, kMostClasses>;

// Weighted max-min over [begin, end): whoever wants less than its fair share gets what it wants.
void share_out(double total, const Values& count, const Values& weight, const Values& want,
               std::size_t begin, std::size_t end, Values& grant) {
    double wanted = 0;
    for (std::size_t i = begin; i < end; ++i) wanted += count[i] * want[i];
    if (wanted <= total) {
        for (std::size_t i = begin; i < end; ++i) grant[i] = want[i];
        return;
    }
    std::array<bool, kMostClasses> content{};
    double left = total;
    while (true) {
        double claims = 0;
        for (std::size_t i = begin; i < end; ++i) {
            if (!content[i]) claims += count[i] * weight[i];
        }
        if (claims <= 0) return;
        const double level = std::max(left, 0.0) / claims;
        bool changed = false;
        for (std::size_t i = begin; i < end; ++i) {
            if (content[i]) continue;
            if (want[i] <= weight[i] * level) {
                grant[i] = want[i], content[i] = true, changed = true;
                left -= count[i] * want[i];
            } else {
                grant[i] = weight[i] * level;
            }
        }
        if (!changed) return;
    }
}

struct Pending {
    double target;  // of bytes drained by the producer since the start
    std::size_t burst;
};

class Simulation {
  public:
    Simulation(const FluidModel& model, std::span<const FluidBurst> bursts, FluidResult& result,
               FluidTrace* trace)
        : model_(model),
          bursts_(bursts),
          result_(result),
          trace_(trace),
          order_(model),
          classes_(model.classes.size()),
          groups_(model.groups.size()),
          clusters_(model.clusters.size()) {
        for (double factor : model.turns) lasting_.push_back(std::pow(factor, model.lasting));
        for (std::size_t k = 0; k < classes_; ++k) {
            const ProducerClass& c = model.classes[k];
            const auto g = static_cast<std::size_t>(c.group);
            const auto cluster = static_cast<std::size_t>(model.groups[g].cluster);
            count_[k] = c.count, weight_[k] = c.weight, room_[k] = c.room;
            total_[k] = c.count * model.groups[g].count * model.clusters[cluster].count;
            turn_[k] = static_cast<std::size_t>(c.turn);
            last_class_[g] = k + 1;
            start_at_[k] = 0, target_[k] = kNever;
        }
        for (std::size_t g = 0; g < groups_; ++g) {
            group_count_[g] = model.groups[g].count;
            last_group_[static_cast<std::size_t>(model.groups[g].cluster)] = g + 1;
        }
        for (std::size_t c = 0; c < clusters_; ++c) cluster_count_[c] = model.clusters[c].count;
        equal_.fill(1), cost_.fill(1);
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
            if (trace_ != nullptr) trace_->occupancy.emplace_back(now_, in_flight());
        }
        result_.finished = *std::max_element(ended_.begin(), ended_.begin() + classes_);
        result_.finished_median = order_.median(ended_median_);
    }

  private:
    void find_rates() {
        for (std::size_t k = 0; k < classes_; ++k) {
            const double offered = std::min(supply_[k], model_.egress);
            want_[k] = (queue_[k] > kNothing ? model_.egress : offered) * cost_[k];
        }
        std::size_t k = 0;
        for (std::size_t g = 0; g < groups_; ++g) {
            group_want_[g] = 0;
            for (; k < last_class_[g]; ++k) group_want_[g] += count_[k] * want_[k];
        }
        std::size_t g = 0;
        for (std::size_t c = 0; c < clusters_; ++c) {
            cluster_want_[c] = 0;
            for (; g < last_group_[c]; ++g) cluster_want_[c] += group_count_[g] * group_want_[g];
        }
        share_out(model_.drain, cluster_count_, equal_, cluster_want_, 0, clusters_,
                  cluster_grant_);
        g = 0;
        for (std::size_t c = 0; c < clusters_; ++c) {
            share_out(cluster_grant_[c], group_count_, equal_, group_want_, g, last_group_[c],
                      group_grant_);
            g = last_group_[c];
        }
        k = 0;
        for (g = 0; g < groups_; ++g) {
            share_out(group_grant_[g], count_, share_, want_, k, last_class_[g], out_);
            k = last_class_[g];
        }
        for (k = 0; k < classes_; ++k) {
            out_[k] /= cost_[k];
            const bool full = queue_[k] >= room_[k] - kNothing && supply_[k] > out_[k];
            in_[k] = full ? out_[k] : supply_[k];
        }
    }

    double next_event() {
        double soonest = kNever;
        for (std::size_t k = 0; k < classes_; ++k) {
            double when = start_at_[k] - now_;
            if (in_[k] > 0) when = std::min(when, left_[k] / in_[k]);
            const double net = in_[k] - out_[k];
            if (net > 1e-12) when = std::min(when, (room_[k] - queue_[k]) / net);
            if (net < -1e-12 && queue_[k] > kNothing) when = std::min(when, queue_[k] / -net);
            // A turn lasts equally long whoever holds it: it counts the fair share, not bytes.
            turn_rate_[k] = out_[k] * weight_[k] / share_[k];
            if (turn_left_[k] > 0 && out_[k] > 0) {
                when = std::min(when, turn_left_[k] / turn_rate_[k]);
            }
            soonest = std::min(soonest, when);
        }
        return std::max(soonest, 0.0);
    }

    void advance(double step) {
        now_ += step;
        bool drained = false, finished = false, starts = false;
        for (std::size_t k = 0; k < classes_; ++k) {
            const double before = queue_[k], sent = in_[k] * step;
            double queue = before + sent - out_[k] * step;
            if (queue <= kNothing) queue = 0;
            queue_[k] = queue;
            left_[k] -= sent;
            if (in_[k] == supply_[k]) at_once_[k] += sent;
            drained_[k] += before + sent - queue;
            if (turn_left_[k] > 0) {
                turn_left_[k] -= turn_rate_[k] * step;
                if (turn_left_[k] <= kNothing) turn_left_[k] = 0, share_[k] = share_after_[k];
            }
            drained |= target_[k] <= drained_[k] + kDust;
            finished |= supply_[k] > 0 && left_[k] <= kNothing;
            starts |= start_at_[k] <= now_ + kNothing;
        }
        if (drained) note_due(step);
        if (finished) finish_due();
        if (starts || finished) start_due();
    }

    void note_due(double step) {
        for (std::size_t k = 0; k < classes_; ++k) {
            std::deque<Pending>& pending = pending_[k];
            while (!pending.empty() && pending.front().target <= drained_[k] + kDust) {
                const double beyond = drained_[k] - pending.front().target;
                note_drained(
                    pending.front().burst,
                    now_ - (out_[k] > 0 ? std::clamp(beyond / out_[k], 0.0, step) : 0));
                pending.pop_front();
            }
            target_[k] = pending.empty() ? kNever : pending.front().target;
        }
    }

    void note_drained(std::size_t burst, double when) {
        result_.drained[burst] = std::max(result_.drained[burst], when);
    }

    void finish_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (supply_[k] <= 0 || left_[k] > kNothing) continue;
            const std::size_t j = burst_[k];
            const FluidBurst& burst = bursts_[j];
            const double took = now_ - began_[k] - apart_[k];
            // The issuers of a producer store in turn, so that its last rounds tell their ends apart.
            const double lag = std::clamp(model_.round_bytes / in_[k], 0.0,
                                          std::max(0.0, took - burst.issue_apart));
            IssueTimes& times = order_.times(j);
            times.slowest[k] = took, times.lag[k] = lag;
            times.free[k] = burst.issue_apart;
            times.at_once[k] = apart_[k] > 0 ? at_once_[k] / burst.bytes : 0;
            times.in_turn[k] = std::min(1.0, apart_[k] / std::max(burst.issue_apart, 1.0));
            if (trace_ != nullptr) {
                trace_->issue[j * classes_ + k] = static_cast<float>(took);
            }
            order_.done(j, result_);
            result_.queued[j] = std::max(result_.queued[j], static_cast<float>(in_flight()));
            if (queue_[k] > 0) {
                pending_[k].push_back({drained_[k] + queue_[k], j});
                target_[k] = pending_[k].front().target;
            } else {
                note_drained(j, now_);
            }
            supply_[k] = left_[k] = turn_left_[k] = 0;
            share_[k] = share_after_[k];
            turn_[k] = static_cast<std::size_t>(model_.next_turn[turn_[k]]);
            burst_[k] = j + 1;
            ended_[k] = now_, ended_median_[k] = now_ - lag / 2;
            if (burst_[k] == bursts_.size()) continue;
            const double gap = burst.gap;
            switch (model_.gap_from) {
                case FluidGap::kIssuer:
                    apart_[k] = std::min(lag, gap);
                    start_at_[k] = now_ + gap - apart_[k];
                    break;
                case FluidGap::kProducer: start_at_[k] = now_ + gap; break;
                case FluidGap::kAll:
                    if (--waiting_ > 0) break;
                    waiting_ = classes_;
                    for (std::size_t i = 0; i < classes_; ++i) start_at_[i] = now_ + gap;
            }
        }
    }

    double in_flight() const {
        double sum = 0;
        for (std::size_t k = 0; k < classes_; ++k) sum += total_[k] * queue_[k];
        return sum;
    }

    void start_due() {
        for (std::size_t k = 0; k < classes_; ++k) {
            if (start_at_[k] > now_ + kNothing) continue;
            const FluidBurst& burst = bursts_[burst_[k]];
            // Issuers that are apart do not queue for their producer.
            const double in_step = std::clamp(1 - apart_[k] / burst.issue, 0.0, 1.0);
            const double free = burst.issue_apart + (burst.issue - burst.issue_apart) * in_step;
            start_at_[k] = kNever;
            began_[k] = now_;
            left_[k] = burst.bytes, at_once_[k] = 0;
            supply_[k] = burst.bytes / (free + apart_[k]);
            cost_[k] = burst.cost;
            turn_left_[k] = model_.turn_bytes;
            share_after_[k] = weight_[k] * lasting_[turn_[k]];
            share_[k] = model_.turn_bytes > 0 ? weight_[k] * model_.turns[turn_[k]] : weight_[k];
            result_.begun[burst_[k]] = std::min(result_.begun[burst_[k]], now_);
        }
    }

    const FluidModel& model_;
    std::span<const FluidBurst> bursts_;
    FluidResult& result_;
    FluidTrace* trace_;
    IssueOrder order_;
    std::size_t classes_, groups_, clusters_;
    Values count_{}, total_{}, weight_{}, room_{}, share_{}, share_after_{}, cost_{}, equal_{};
    Values queue_{}, left_{}, supply_{}, in_{}, out_{}, want_{}, drained_{}, at_once_{};
    Values turn_left_{}, turn_rate_{}, start_at_{}, target_{}, began_{}, apart_{}, ended_{},
        ended_median_{};
    Values group_count_{}, group_want_{}, group_grant_{}, cluster_count_{}, cluster_want_{},
        cluster_grant_{};
    std::array<std::size_t, kMostClasses> last_class_{}, last_group_{}, turn_{}, burst_{};
    std::array<std::deque<Pending>, kMostClasses> pending_;
    std::vector<double> lasting_;
    std::size_t waiting_ = 0;
    double now_ = 0;
};

}  // namespace

FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts,
                      FluidTrace* trace) {
    const std::size_t classes = model.classes.size();
    if (classes == 0 || classes > kMostClasses || !(model.drain > 0) || !(model.egress > 0)) {
        throw Error(ErrorKind::kBadInput,
                    "fluid model: 1 to 96 classes and positive rates expected");
    }
    FluidResult result;
    result.slowest.resize(bursts.size());
    result.median.resize(bursts.size());
    result.queued.resize(bursts.size());
    result.begun.assign(bursts.size(), kNever);
    result.drained.resize(bursts.size());
    if (trace != nullptr) trace->issue.resize(bursts.size() * classes);
    if (!bursts.empty()) Simulation(model, bursts, result, trace).run();
    return result;
}

}  // namespace xstage::model
