#pragma once

#include <algorithm>
#include <functional>

#include "probe/node.hpp"

namespace xstage::probe::test {

/// A node with no hardware: issue times by the isolated Burst-Gap form, a clock that a test may
/// move, and faults on demand.
class FakeNode : public Node {
  public:
    double clock_ghz = 2.0;
    double issue_per_byte = 0.03;         // cycles
    std::function<double(int)> clock_of;  // by sample since the start; empty: clock_ghz
    std::function<void(const StoreConfig&)> before_store;
    std::vector<PairCheck> pairs{{0, 1, true, ""}, {1, 0, true, ""}};
    bool throttled = false;
    int warm_ups = 0;
    int samples_taken = 0;
    int launches = 0;
    std::int64_t stale = 0;
    std::pair<int, int> used{-1, -1};

    NodeInfo info() const override {
        NodeInfo info;
        info.gpus = {{"Fake", "GPU-0", 8, GigaHertz{2.0}}, {"Fake", "GPU-1", 8, GigaHertz{2.0}}};
        info.hostname = "fake";
        info.driver = "1";
        info.cuda = "13.0";
        info.line_rate = 450;
        return info;
    }
    std::vector<PairCheck> self_test() override { return pairs; }
    void use_pair(int from, int to) override { used = {from, to}; }
    void warm_up(double) override { ++warm_ups; }
    ThrottleState throttle() override { return {true, throttled, throttled ? "test" : ""}; }
    bool supports(const StoreConfig& config, std::string& why_not) const override {
        if (config.path != "tensor") return true;
        why_not = "no tensor maps here";
        return false;
    }
    std::vector<StoreSample> store(const StoreConfig& config, int samples) override {
        ++launches;
        if (before_store) before_store(config);
        std::vector<StoreSample> out;
        for (int i = 0; i < samples; ++i) {
            const double ghz = clock_of ? clock_of(samples_taken) : clock_ghz;
            ++samples_taken;
            StoreSample sample;
            const double issue = issue_per_byte * static_cast<double>(config.bytes);
            sample.issue.assign(static_cast<std::size_t>(config.bursts), {});
            for (int sm = 0; sm < 8; ++sm) {
                const auto at = static_cast<std::size_t>(sm);
                const bool stores =
                    config.sm_mask.empty() ? sm < config.producers : config.sm_mask[at];
                if (!stores) continue;
                for (auto& burst : sample.issue) burst.push_back(issue + sm);
                sample.total.push_back(config.bursts * issue);
                sample.fence.push_back(config.bursts * issue + 500);
                sample.sm.push_back(sm);
            }
            sample.elapsed_ns = (config.bursts * issue + 500) / ghz;
            sample.window_ns = 10'000;
            sample.window_cycles = 10'000 * ghz;
            out.push_back(sample);
        }
        return out;
    }
    std::vector<VisibleSample> visible(const VisibleConfig& config, int samples) override {
        VisibleSample sample{.issue = 100,
                             .fenced = 200,
                             .echo = 8000,
                             .echo_ns = 4000,
                             .window_cycles = 20'000,
                             .window_ns = 10'000,
                             .stale_words = config.bytes > 0 ? stale : 0};
        return std::vector<VisibleSample>(static_cast<std::size_t>(samples), sample);
    }
    RateSample rate(const RateConfig& config) override {
        return {static_cast<double>(config.bytes) / 400.0, config.bytes, config.bytes};
    }
    LitmusCount litmus(const LitmusConfig& config) override {
        return {config.trials, stale, stale};
    }
    std::vector<std::vector<int>> sm_groups() override { return {{0, 1, 2, 3}, {4, 5, 6, 7}}; }
};

}  // namespace xstage::probe::test
