// The CUDA node in loopback, on one GPU: what must hold whatever the speed.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "probe/node.hpp"
#include "probe/plan.hpp"
#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

class GpuNode : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        try {
            node_ = open_cuda_node({.loopback = true, .from = 0, .to = 0});
            pairs_ = node_->self_test();
            node_->use_pair(0, 0);
        } catch (const Error& error) {
            node_ = nullptr;
            reason_ = error.what();
        }
    }
    static void TearDownTestSuite() { node_.reset(); }
    void SetUp() override {
        if (node_ == nullptr) GTEST_SKIP() << reason_;
    }
    static int sms() { return node_->info().gpus.front().sms; }

    static std::unique_ptr<Node> node_;
    static std::vector<PairCheck> pairs_;
    static std::string reason_;
};
std::unique_ptr<Node> GpuNode::node_;
std::vector<PairCheck> GpuNode::pairs_;
std::string GpuNode::reason_;

TEST_F(GpuNode, TheSelfTestFindsItsOwnBytes) {
    ASSERT_EQ(pairs_.size(), 1u);
    EXPECT_TRUE(pairs_[0].ok) << pairs_[0].reason;
}

TEST_F(GpuNode, EveryPathOfThePlanRunsAndAccountsForItsWorkers) {
    std::set<std::string> paths;
    for (const Step& step : make_plan({.sms = sms(), .loopback = true})) {
        const auto* c = std::get_if<StoreConfig>(&step.work);
        if (c != nullptr) paths.insert(c->path);
    }
    EXPECT_EQ(paths.size(), 9u);
    for (const std::string& path : paths) {
        StoreConfig config;
        config.mode = BurstMode::kGap2;
        config.path = path;
        config.producers = 5;
        config.warps = 2;
        config.bytes = 8192;
        config.bursts = 2;
        config.gap_cycles = 3000;
        const bool bulk = path == "bulk" || path == "tensor" || path == "bulk_red_f32";
        const auto samples = node_->store(config, 3);
        ASSERT_EQ(samples.size(), 3u) << path;
        for (const StoreSample& sample : samples) {
            ASSERT_EQ(sample.issue.size(), 2u);
            EXPECT_EQ(sample.issue[0].size(), bulk ? 5u : 10u) << path;
            EXPECT_EQ(sample.posted.empty(), !bulk);
            EXPECT_EQ(std::set<int>(sample.sm.begin(), sample.sm.end()).size(), 5u)
                << "one CTA per SM";
            for (std::size_t w = 0; w < sample.total.size(); ++w) {
                EXPECT_GT(sample.issue[1][w], 0);
                // Both bursts and the gap between them lie within the total, and that within the
                // drain.
                EXPECT_GE(sample.total[w], sample.issue[0][w] + 3000 + sample.issue[1][w]) << path;
                EXPECT_GE(sample.fence[w], sample.total[w]) << path;
            }
            EXPECT_GT(sample.window_ns, sample.elapsed_ns);
        }
    }
}

TEST_F(GpuNode, OnlySmsOfTheMaskStore) {
    StoreConfig config;
    config.producers = 0;
    config.bytes = 4096;
    for (int id = 0; id < sms(); ++id) {
        config.sm_mask.push_back(id % 3 == 0);
        config.producers += id % 3 == 0;
    }
    for (const StoreSample& sample : node_->store(config, 2)) {
        const std::set<int> ids(sample.sm.begin(), sample.sm.end());
        EXPECT_EQ(static_cast<int>(ids.size()), config.producers);
        for (const int id : ids) EXPECT_EQ(id % 3, 0);
    }
}

TEST_F(GpuNode, AGapFromAllIsAsLongForEveryProducer) {
    StoreConfig config;
    config.mode = BurstMode::kGap2;
    config.producers = 8;
    config.bytes = 4096;
    config.bursts = 2;
    config.gap_cycles = 20'000;
    config.gap_from = GapFrom::kAll;
    for (const StoreSample& sample : node_->store(config, 2)) {
        for (const double total : sample.total) EXPECT_GT(total, 15'000);
    }
}

TEST_F(GpuNode, AReaderSeesEveryByteAfterTheFence) {
    for (const auto* path : {"st16", "bulk"}) {
        for (const Fence fence : {Fence::kOneThread, Fence::kAllThreads}) {
            const VisibleConfig config{
                .path = path, .producers = sms(), .warps = 4, .bytes = 8192, .fence = fence};
            for (const VisibleSample& sample : node_->visible(config, 5)) {
                EXPECT_EQ(sample.stale_words, 0) << path;
                EXPECT_GE(sample.fenced, sample.issue);
                EXPECT_GE(sample.echo, sample.fenced * 0.5);
            }
        }
    }
}

TEST_F(GpuNode, SufficientFencesShowNothingStaleAndEveryTrialCounts) {
    for (const auto* path : {"st16", "bulk", "red"}) {
        for (int f = 0; f <= static_cast<int>(LitmusFence::kNextKernelEarly); ++f) {
            for (const bool loaded : {false, true}) {
                const LitmusConfig config{path, static_cast<LitmusFence>(f), loaded, 20'000};
                const LitmusCount count = node_->litmus(config);
                EXPECT_GE(count.trials, 20'000);
                if (formally_sufficient(path, config.fence)) {
                    EXPECT_EQ(count.stale_messages, 0) << path << ' ' << fence_name(config.fence);
                }
            }
        }
    }
}

TEST_F(GpuNode, UnsupportedConfigurationsSayWhy) {
    std::string why;
    StoreConfig config;
    config.bytes = 100;
    EXPECT_FALSE(node_->supports(config, why));
    EXPECT_NE(why.find("multiples of 512"), std::string::npos);
    config.bytes = 4096;
    config.both_directions = true;
    EXPECT_FALSE(node_->supports(config, why));
    EXPECT_NE(why.find("two GPUs"), std::string::npos);
    config.both_directions = false;
    EXPECT_TRUE(node_->supports(config, why));
}

TEST_F(GpuNode, RatesMoveWhatTheyWereAskedTo) {
    for (const auto* engine : {"fill_kernel", "copy_engine", "store_kernel", "remote_read"}) {
        const RateSample sample = node_->rate({engine, "write", Target::kLocal, 64 << 20});
        EXPECT_EQ(sample.bytes, 64 << 20);
        EXPECT_GT(sample.ns, 0);
    }
    EXPECT_THROW(node_->rate({"rumour", "write", Target::kLocal, 1 << 20}), Error);
}

TEST_F(GpuNode, GroupsHoldEverySmOnce) {
    std::multiset<int> ids;
    for (const auto& group : node_->sm_groups()) ids.insert(group.begin(), group.end());
    EXPECT_EQ(static_cast<int>(ids.size()), sms());
    EXPECT_EQ(static_cast<int>(std::set<int>(ids.begin(), ids.end()).size()), sms());
}

}  // namespace
}  // namespace xstage::probe
