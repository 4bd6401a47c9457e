#include "sim/bursts.hpp"

#include <algorithm>

namespace xstage::sim {
namespace {

class TraceProgram : public Program {
  public:
    TraceProgram(const Cluster& cluster, const Trace& trace, int rank) : in_step_(trace.in_step) {
        for (int d = 0; d < cluster.gpus; ++d) routes_.push_back({{d, 1.0}});
        for (const TraceBurst& burst : trace.bursts) {
            if (burst.rank != rank) continue;
            const auto p = static_cast<std::size_t>(burst.producer);
            if (steps_.size() <= p) steps_.resize(p + 1);
            Step step;
            step.role = Role::kBurst;
            step.id = static_cast<int>(steps_[p].size());
            step.compute_ns = burst.gap_ns;
            if (in_step_) step.gate = step.id;
            if (burst.destination == rank) {
                step.local_ns = cluster.node.local_ns(burst.bytes);
            } else {
                const bool near = cluster.same_domain(rank, burst.destination);
                step.parts = 1;
                step.part[0] = {burst.bytes, cluster.node.issue_ns(burst.bytes), burst.destination,
                                near ? Channel::kLink : Channel::kNetwork};
            }
            steps_[p].push_back(step);
        }
        at_.resize(steps_.size());
        if (!in_step_) return;
        for (const auto& steps : steps_) {
            remaining_.resize(std::max(remaining_.size(), steps.size()));
        }
        std::vector<double> gap(remaining_.size());
        for (const auto& steps : steps_) {
            for (std::size_t i = 0; i < steps.size(); ++i) {
                ++remaining_[i];
                gap[i] = std::max(gap[i], steps[i].compute_ns);
            }
        }
        for (auto& steps : steps_) {
            for (std::size_t i = 0; i < steps.size(); ++i) steps[i].compute_ns = gap[i];
        }
    }

    int producers() const override { return static_cast<int>(steps_.size()); }
    const std::vector<Route>& routes() const override { return routes_; }
    int gates() const override { return static_cast<int>(remaining_.size()) + 1; }

    bool claim(int producer, Step& step) override {
        const auto p = static_cast<std::size_t>(producer);
        if (at_[p] == steps_[p].size()) return false;
        step = steps_[p][at_[p]++];
        return true;
    }
    bool open(int gate) const override {
        return gate == 0 || remaining_[static_cast<std::size_t>(gate) - 1] == 0;
    }
    int accepted(const Step& step) override {
        if (!in_step_) return -1;
        return --remaining_[static_cast<std::size_t>(step.id)] == 0 ? step.id + 1 : -1;
    }

  private:
    bool in_step_;
    std::vector<Route> routes_;
    std::vector<std::vector<Step>> steps_;
    std::vector<std::size_t> at_;
    std::vector<int> remaining_;  // producers that have not issued burst n
};

}  // namespace

Trace uniform_trace(int gpus, int producers, const std::vector<double>& bytes,
                    const std::vector<double>& gap_ns, bool in_step, bool one_way) {
    Trace trace;
    trace.in_step = in_step;
    for (int rank = 0; rank < (one_way ? gpus - 1 : gpus); ++rank) {
        for (int p = 0; p < producers; ++p) {
            for (std::size_t b = 0; b < bytes.size(); ++b) {
                const double gap = b > 0 && b - 1 < gap_ns.size() ? gap_ns[b - 1] : 0;
                trace.bursts.push_back({rank, p, (rank + 1) % gpus, gap, bytes[b]});
            }
        }
    }
    return trace;
}

ProgramFactory trace_programs(const Cluster& cluster, const Trace& trace) {
    return
        [cluster, trace](int rank) { return std::make_unique<TraceProgram>(cluster, trace, rank); };
}

}  // namespace xstage::sim
