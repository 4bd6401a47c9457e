#include "sim/split.hpp"

#include <map>
#include <utility>

namespace xstage::sim {
namespace {

class SplitProgram : public Program {
  public:
    SplitProgram(const Node& node, int copying, std::unique_ptr<Program> inner, Program& scout)
        : node_(node), copying_(copying), inner_(std::move(inner)), gates_(inner_->gates()) {
        // Which tiles must be carried is known before any is computed: claiming them all in turn
        // walks the order.
        std::vector<bool> live(static_cast<std::size_t>(scout.first_helper()), true);
        for (bool any = true; any;) {
            any = false;
            for (std::size_t p = 0; p < live.size(); ++p) {
                Step step;
                if (!live[p] || !(live[p] = scout.claim(static_cast<int>(p), step))) continue;
                any = true;
                if (step.parts == 0) continue;
                number_[{step.role, step.id}] = static_cast<int>(copies_.size());
                Step copy;
                copy.role = Role::kCopy;
                copy.id = static_cast<int>(copies_.size());
                copy.gate = gates_ + copy.id;
                copy.parts = step.parts;
                for (int i = 0; i < step.parts; ++i) copy.part[i] = step.part[i];
                copies_.push_back(copy);
            }
        }
        stored_.assign(copies_.size(), false);
    }

    int producers() const override { return inner_->producers() + copying_; }
    int first_helper() const override { return inner_->first_helper() + copying_; }
    const std::vector<Route>& routes() const override { return inner_->routes(); }
    int gates() const override { return gates_ + static_cast<int>(copies_.size()); }
    bool open(int gate) const override {
        return gate < gates_ ? inner_->open(gate)
                             : stored_[static_cast<std::size_t>(gate - gates_)];
    }

    bool claim(int producer, Step& step) override {
        const int computing = inner_->first_helper();
        if (producer >= computing && producer < computing + copying_) {
            if (next_ == copies_.size()) return false;
            step = copies_[next_++];
            return true;
        }
        const int inside = producer < computing ? producer : producer - copying_;
        if (!inner_->claim(inside, step)) return false;
        if (inside >= computing) return true;
        for (int i = 0; i < step.parts; ++i) step.local_ns += node_.local_ns(step.part[i].bytes);
        step.parts = 0;
        return true;
    }

    int accepted(const Step& step) override {
        if (step.role == Role::kCopy) return -1;
        const auto found = number_.find({step.role, step.id});
        if (found == number_.end()) return inner_->accepted(step);
        inner_->accepted(step);
        stored_[static_cast<std::size_t>(found->second)] = true;
        return gates_ + found->second;
    }
    int drained(const Step& step) override {
        return step.role == Role::kCopy ? -1 : inner_->drained(step);
    }

  private:
    Node node_;
    int copying_;
    std::unique_ptr<Program> inner_;
    int gates_;
    std::vector<Step> copies_;
    std::vector<bool> stored_;
    std::map<std::pair<Role, int>, int> number_;
    std::size_t next_ = 0;
};

}  // namespace

Node computing_part(const Node& node, int sms) {
    Node part = node;
    const double share = static_cast<double>(sms) / node.sms;
    part.sms = sms;
    part.groups.clear();
    part.halves.clear();
    part.order.clear();
    part.fp8_tflops *= share;
    part.bf16_tflops *= share;
    return part;
}

ProgramFactory split_programs(const Cluster& cluster, int copying, const ProgramFactory& inner) {
    const Node node = cluster.node;
    return [node, copying, inner](int rank) {
        const std::unique_ptr<Program> scout = inner(rank);
        return std::make_unique<SplitProgram>(node, copying, inner(rank), *scout);
    };
}

}  // namespace xstage::sim
