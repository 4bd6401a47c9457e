#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "model/fluid.hpp"
#include "xstage/error.hpp"

namespace {

using namespace xstage::model;

// 10 producers with a room of 100 B each, link 50 B/cycle, 400 B in 10 free cycles. Each sends
// 5 B/cycle: its room is full after 100 / 35 cycles, at 114.29 B; the rest goes at 5 B/cycle.
TEST(Fluid, FillsTheRoomThenIssuesAtTheLinksRate) {
    FluidModel model;
    model.classes = {{0, 10, 100}};
    model.drain = 50, model.egress = 1000;
    const FluidBurst burst{400, 10, 10, 0, 1};
    const FluidResult r = run_fluid(model, std::span(&burst, 1));
    EXPECT_NEAR(r.slowest[0], 60, 1e-3);  // (4000 - 1000) / 50
    EXPECT_NEAR(r.drained[0], 80, 1e-3);  // 4000 / 50
    EXPECT_NEAR(r.queued[0], 1000, 1e-2);
}

// Weights 3 : 1 on a link of 40: 30 and 10 B/cycle; no rooms to speak of. The favoured class ends
// at 300 / 30 = 10 with the other at 100, which then has the link alone: 10 + 200 / 40 = 15.
TEST(Fluid, SharesByWeightAndHandsOverWhatIsLeft) {
    FluidModel model;
    model.classes = {{0, 1, 1e-3, 3}, {0, 1, 1e-3, 1}};
    model.drain = 40, model.egress = 1000;
    const FluidBurst burst{300, 1e-3, 1e-3, 0, 1};
    FluidTrace trace;
    const FluidResult r = run_fluid(model, std::span(&burst, 1), &trace);
    EXPECT_NEAR(trace.issue[0], 10, 1e-2);
    EXPECT_NEAR(trace.issue[1], 15, 1e-2);
    EXPECT_NEAR(r.slowest[0], 15, 1e-2);
}

// A producer whose own egress is below its share leaves the rest of the link to nobody.
TEST(Fluid, OneProducerIsBoundByItsEgress) {
    FluidModel model;
    model.classes = {{0, 1, 10}};
    model.drain = 100, model.egress = 20;
    const FluidBurst burst{210, 1, 1, 0, 1};
    EXPECT_NEAR(run_fluid(model, std::span(&burst, 1)).slowest[0], 10, 1e-3);  // (210 - 10) / 20
}

TEST(Fluid, GapFromAllStartsEveryProducerTogether) {
    FluidModel model;
    model.classes = {{0, 1, 1e-3, 3}, {0, 1, 1e-3, 1}};
    model.drain = 40, model.egress = 1000, model.gap_from = FluidGap::kAll;
    const std::vector<FluidBurst> bursts(2, {300, 1e-3, 1e-3, 7, 1});
    FluidTrace trace;
    const FluidResult r = run_fluid(model, bursts, &trace);
    EXPECT_NEAR(r.begun[1], 15 + 7, 1e-2);
    EXPECT_NEAR(trace.issue[2], 10, 1e-2);  // the second burst repeats the first
    EXPECT_NEAR(trace.issue[3], 15, 1e-2);
}

TEST(Fluid, RefusesAModelThatCannotDrain) {
    FluidModel model;
    model.drain = 1;
    EXPECT_THROW(run_fluid(model, {}), xstage::Error);
    model.classes = {{0, 1, 1}};
    model.drain = 0;
    EXPECT_THROW(run_fluid(model, {}), xstage::Error);
}

FluidModel any_model() {
    FluidModel model;
    model.drain = *rc::gen::inRange(20, 400);
    model.egress = *rc::gen::inRange(5, 60);
    model.turns = {2.0, 1.0, 0.5}, model.after = {1.0, 1.0, 1.0};
    model.next_turn = {1, 2, 0};
    model.turn_bytes = *rc::gen::inRange(0, 30000);
    const int clusters = *rc::gen::inRange(1, 4);
    model.clusters.clear(), model.groups.clear();
    for (int c = 0; c < clusters; ++c) {
        model.clusters.push_back({static_cast<double>(*rc::gen::inRange(1, 4))});
        const int groups = *rc::gen::inRange(1, 4);
        for (int g = 0; g < groups; ++g) {
            const int group = static_cast<int>(model.groups.size());
            model.groups.push_back({c, static_cast<double>(*rc::gen::inRange(1, 3))});
            const int classes = *rc::gen::inRange(1, 4);
            for (int k = 0; k < classes; ++k) {
                model.classes.push_back({group, *rc::gen::inRange(1, 12) / 2.0,
                                         static_cast<double>(*rc::gen::inRange(100, 30000)),
                                         *rc::gen::inRange(1, 8) / 4.0, k});
            }
        }
    }
    return model;
}

// No byte is lost: the link is never faster than its rate, nor idle while all are stalled.
RC_GTEST_PROP(Fluid, DrainsEveryByteNoFasterThanTheLink, ()) {
    const FluidModel model = any_model();
    const int n = *rc::gen::inRange(1, 20);
    std::vector<FluidBurst> bursts;
    double all = 0, producers = 0;
    for (const ProducerClass& c : model.classes) {
        const FluidGroup& group = model.groups[static_cast<std::size_t>(c.group)];
        producers +=
            c.count * group.count * model.clusters[static_cast<std::size_t>(group.cluster)].count;
    }
    for (int j = 0; j < n; ++j) {
        const double bytes = *rc::gen::inRange(100, 100000);
        const double gap = *rc::gen::inRange(0, 5000);
        bursts.push_back({bytes, bytes / 40 + 100, bytes / 60 + 100, gap, 1});
        all += bytes * producers;
    }
    FluidTrace trace;
    const FluidResult r = run_fluid(model, bursts, &trace);
    const double end = *std::max_element(r.drained.begin(), r.drained.end());
    RC_ASSERT(end >= all / model.drain * (1 - 1e-6));
    for (int j = 0; j < n; ++j) {
        RC_ASSERT(r.drained[j] >= r.begun[j] + r.slowest[j] * (1 - 1e-5) - 1e-3 || j > 0);
        RC_ASSERT(r.median[j] <= r.slowest[j] * (1 + 1e-5));
        for (std::size_t k = 0; k < model.classes.size(); ++k) {
            RC_ASSERT(trace.issue[j * model.classes.size() + k] >=
                      bursts[j].issue_apart * (1 - 1e-5));
        }
    }
}

// Two clusters of one and two groups, 30 B/cycle. A cluster gets 15, a group of the second 7.5;
// groups hold one and three SMs, which get 15, and 7.5 or 2.5. At 20 the first cluster has stored
// its 300 B and the second gets all: 15 to a group, 15 to its lone SM, which has 150 left and ends
// at 30; then the three share 30.
TEST(Fluid, SharesByClusterThenGroupThenProducer) {
    FluidModel model;
    model.clusters = {{1}, {1}};
    model.groups = {{0, 1}, {1, 1}, {1, 1}};
    model.classes = {{0, 1, 1e-3}, {1, 1, 1e-3}, {2, 3, 1e-3}};
    model.drain = 30, model.egress = 1000;
    const FluidBurst burst{300, 1e-3, 1e-3, 0, 1};
    FluidTrace trace;
    const FluidResult r = run_fluid(model, std::span(&burst, 1), &trace);
    EXPECT_NEAR(trace.issue[0], 20, 1e-2);
    EXPECT_NEAR(trace.issue[1], 30, 1e-2);
    EXPECT_NEAR(trace.issue[2], 50, 1e-2);  // 3 * 300 - 20 * 7.5 - 10 * 15 = 600 at 30
    EXPECT_NEAR(r.median[0], 50, 1e-2);
}

// What one SM cannot send goes to the SMs of its group, then to the cluster's other groups, then to
// the other clusters: SMs of 4 B/cycle at most, 20 in all, alone in its group and in its cluster.
TEST(Fluid, WhatOneCannotUseGoesToTheNearest) {
    FluidModel model;
    model.clusters = {{1}, {1}};
    model.groups = {{0, 1}, {1, 1}, {1, 1}};
    model.classes = {{0, 1, 1e-3}, {1, 1, 1e-3}, {2, 8, 1e-3}};
    model.drain = 20, model.egress = 4;
    const FluidBurst burst{120, 1e-3, 1e-3, 0, 1};
    FluidTrace trace;
    run_fluid(model, std::span(&burst, 1), &trace);
    EXPECT_NEAR(trace.issue[0], 30, 1e-2);  // 120 / 4, of the 10 that its cluster may have
    EXPECT_NEAR(trace.issue[1], 30, 1e-2);  // 120 / 4, of 8
    EXPECT_NEAR(trace.issue[2], 60, 1e-2);  // 20 - 4 - 4 for 30, then 20: (960 - 360) / 20 more
}

// Issuers that count their gaps alone begin the next burst one by one: with room for half of it the
// median one meets none of the backpressure that all meet together.
TEST(Fluid, IssuersOneByOneFindTheRoomInTurn) {
    FluidModel model;
    model.classes = {{0, 10, 300}};
    model.drain = 10, model.egress = 100;
    model.round_bytes = 60;
    const std::vector<FluidBurst> bursts(2, {400, 10, 5, 2000, 1});
    const double together = run_fluid(model, bursts).median[1];
    model.gap_from = FluidGap::kIssuer;
    const FluidResult r = run_fluid(model, bursts);
    EXPECT_LT(r.median[1], 0.5 * together);
    EXPECT_GT(r.slowest[1], r.median[1]);
}

}  // namespace
