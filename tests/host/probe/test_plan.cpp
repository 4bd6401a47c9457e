#include <gtest/gtest.h>

#include <set>

#include "probe/plan.hpp"

namespace xstage::probe {
namespace {

double seconds(const std::vector<Step>& steps) {
    double total = 0;
    for (const Step& step : steps) total += step.estimate_ns;
    return total / 1e9;
}

std::string identity(const Step& step) {
    std::string text = step.phase + describe(step);
    if (const auto* c = std::get_if<StoreConfig>(&step.work)) {
        text += std::to_string(c->destinations) + std::to_string(static_cast<int>(c->addresses)) +
                std::to_string(static_cast<int>(c->beside)) + std::to_string(c->both_directions) +
                std::to_string(static_cast<int>(c->gap_from));
    }
    if (const auto* c = std::get_if<VisibleConfig>(&step.work)) {
        text += std::to_string(static_cast<int>(c->fence)) +
                std::to_string(static_cast<int>(c->addresses));
    }
    return text;
}

TEST(Plan, DefaultFitsAMinuteAndQuickTenSeconds) {
    EXPECT_LT(seconds(make_plan({})), 60);
    EXPECT_LT(seconds(make_plan({.quick = true})), 8);
}

TEST(Plan, NoConfigurationStandsTwice) {
    for (const bool quick : {false, true}) {
        std::set<std::string> seen;
        for (const Step& step : make_plan({.peers = 3, .quick = quick})) {
            EXPECT_TRUE(seen.insert(identity(step)).second) << identity(step);
        }
    }
}

TEST(Plan, CountsFitASmallGpu) {
    for (const Step& step : make_plan({.sms = 14})) {
        if (const auto* c = std::get_if<StoreConfig>(&step.work)) {
            EXPECT_LE(c->producers, 14);
            EXPECT_GE(c->producers, 1);
        }
    }
}

TEST(Plan, AxesOfTheUserReplaceThoseOfThePlan) {
    PlanOptions options;
    options.axes.bytes = {2048};
    options.axes.sms = {7};
    options.axes.paths = {"st16"};
    bool isolated = false;
    for (const Step& step : make_plan(options)) {
        const auto* c = std::get_if<StoreConfig>(&step.work);
        if (c == nullptr) continue;
        EXPECT_EQ(c->path, "st16");
        EXPECT_EQ(c->bytes == 2048 || step.phase == "both directions", true) << describe(step);
        if (step.phase == "isolated") {
            isolated = true;
            EXPECT_EQ(c->producers, 7);
        }
    }
    EXPECT_TRUE(isolated);
}

TEST(Plan, LoopbackHasNoOtherDirection) {
    for (const Step& step : make_plan({.loopback = true})) {
        if (const auto* c = std::get_if<StoreConfig>(&step.work)) {
            EXPECT_FALSE(c->both_directions);
        }
        if (const auto* c = std::get_if<RateConfig>(&step.work)) {
            EXPECT_NE(c->direction, "both");
        }
    }
}

TEST(Plan, OrderingTestsCoverEveryCellOnceUnderBothLoads) {
    std::set<std::string> cells;
    for (const Step& step : make_plan({.litmus = true})) {
        const auto& c = std::get<LitmusConfig>(step.work);
        EXPECT_GE(c.trials, 10'000'000);
        cells.insert(c.path + fence_name(c.fence) + (c.loaded ? "loaded" : "idle"));
    }
    // st16 and red: 6 forms; bulk: 2 more for its own waits; twice for the load.
    EXPECT_EQ(cells.size(), 2u * (6 + 8 + 6));
}

TEST(Plan, OnlySystemScopeReleasesAreFormallySufficient) {
    for (const auto* path : {"st16", "bulk", "red"}) {
        EXPECT_FALSE(formally_sufficient(path, LitmusFence::kNothing));
        EXPECT_FALSE(formally_sufficient(path, LitmusFence::kWaitRead));
        EXPECT_FALSE(formally_sufficient(path, LitmusFence::kWaitAll));
        EXPECT_FALSE(formally_sufficient(path, LitmusFence::kFenceGpu));
        EXPECT_TRUE(formally_sufficient(path, LitmusFence::kReleaseSys));
        EXPECT_TRUE(formally_sufficient(path, LitmusFence::kNextKernel));
        EXPECT_TRUE(formally_sufficient(path, LitmusFence::kNextKernelPdl));
        EXPECT_FALSE(formally_sufficient(path, LitmusFence::kNextKernelEarly));
    }
}

TEST(Estimate, GrowsWithBytesOnceTheLinkIsTheLimit) {
    StoreConfig config;
    config.producers = 100;
    config.bytes = 370'000;  // 37 MB: 100 us at 370 GB/s
    const double one = estimate_ns(config, 9, 370);
    config.bytes *= 2;
    EXPECT_DOUBLE_EQ(estimate_ns(config, 9, 370) - one, 10 * 100'000);
    config.bytes /= 2;
    config.mode = BurstMode::kPeriodic;
    config.bursts = 4;
    EXPECT_DOUBLE_EQ(estimate_ns(config, 9, 370) - one, 10 * 300'000);
}

}  // namespace
}  // namespace xstage::probe
