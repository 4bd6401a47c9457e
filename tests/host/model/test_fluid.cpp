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
    model.classes = {{10, 1, 100, 0}};
    model.drain = 50, model.egress = 1000;
    const FluidBurst burst{400, 10, 10, 0, 1};
    const FluidResult r = run_fluid(model, std::span(&burst, 1));
    EXPECT_NEAR(r.issue[0], 60, 1e-3);    // (4000 - 1000) / 50
    EXPECT_NEAR(r.drained[0], 80, 1e-3);  // 4000 / 50
    EXPECT_NEAR(r.queued[0], 1000, 1e-2);
}

// Weights 3 : 1 on a link of 40: 30 and 10 B/cycle; no rooms to speak of. The favoured class ends
// at 300 / 30 = 10 with the other at 100, which then has the link alone: 10 + 200 / 40 = 15.
TEST(Fluid, SharesByWeightAndHandsOverWhatIsLeft) {
    FluidModel model;
    model.classes = {{1, 3, 1e-3, 0}, {1, 1, 1e-3, 0}};
    model.drain = 40, model.egress = 1000;
    const FluidBurst burst{300, 1e-3, 1e-3, 0, 1};
    const FluidResult r = run_fluid(model, std::span(&burst, 1));
    EXPECT_NEAR(r.issue[0], 10, 1e-2);
    EXPECT_NEAR(r.issue[1], 15, 1e-2);
}

// A producer whose own egress is below its share leaves the rest of the link to nobody.
TEST(Fluid, OneProducerIsBoundByItsEgress) {
    FluidModel model;
    model.classes = {{1, 1, 10, 0}};
    model.drain = 100, model.egress = 20;
    const FluidBurst burst{210, 1, 1, 0, 1};
    EXPECT_NEAR(run_fluid(model, std::span(&burst, 1)).issue[0], 10, 1e-3);  // (210 - 10) / 20
}

TEST(Fluid, GapFromAllStartsEveryProducerTogether) {
    FluidModel model;
    model.classes = {{1, 3, 1e-3, 0}, {1, 1, 1e-3, 0}};
    model.drain = 40, model.egress = 1000, model.gap_from_all = true;
    const std::vector<FluidBurst> bursts(2, {300, 1e-3, 1e-3, 7, 1});
    const FluidResult r = run_fluid(model, bursts);
    EXPECT_NEAR(r.begun[1], 15 + 7, 1e-2);
    EXPECT_NEAR(r.issue[2], 10, 1e-2);  // the second burst repeats the first
    EXPECT_NEAR(r.issue[3], 15, 1e-2);
}

TEST(Fluid, RefusesAModelThatCannotDrain) {
    FluidModel model;
    model.drain = 1;
    EXPECT_THROW(run_fluid(model, {}), xstage::Error);
    model.classes = {{1, 1, 1, 0}};
    model.drain = 0;
    EXPECT_THROW(run_fluid(model, {}), xstage::Error);
}

FluidModel any_model() {
    FluidModel model;
    model.drain = *rc::gen::inRange(20, 400);
    model.egress = *rc::gen::inRange(5, 60);
    model.turns = {2.0, 1.0, 0.5};
    model.next_turn = {1, 2, 0};
    model.turn_bytes = *rc::gen::inRange(0, 30000);
    const int classes = *rc::gen::inRange(1, 7);
    for (int k = 0; k < classes; ++k) {
        model.classes.push_back({static_cast<double>(*rc::gen::inRange(1, 40)),
                                 *rc::gen::inRange(1, 8) / 4.0,
                                 static_cast<double>(*rc::gen::inRange(100, 30000)), k % 3});
    }
    return model;
}

// No byte is lost: the link is never faster than its rate, nor idle while all are stalled.
RC_GTEST_PROP(Fluid, DrainsEveryByteNoFasterThanTheLink, ()) {
    const FluidModel model = any_model();
    const int n = *rc::gen::inRange(1, 20);
    std::vector<FluidBurst> bursts;
    double all = 0, producers = 0;
    for (const ProducerClass& c : model.classes) producers += c.count;
    for (int j = 0; j < n; ++j) {
        const double bytes = *rc::gen::inRange(100, 100000);
        const double gap = *rc::gen::inRange(0, 5000);
        bursts.push_back({bytes, bytes / 40 + 100, bytes / 60 + 100, gap, 1});
        all += bytes * producers;
    }
    const FluidResult r = run_fluid(model, bursts);
    const double end = *std::max_element(r.drained.begin(), r.drained.end());
    RC_ASSERT(end >= all / model.drain * (1 - 1e-6));
    for (int j = 0; j < n; ++j) {
        RC_ASSERT(r.drained[j] >= r.ended[j] - 1e-3);
        for (std::size_t k = 0; k < r.classes; ++k) {
            RC_ASSERT(r.issue[j * r.classes + k] >= bursts[j].issue_apart * (1 - 1e-5));
        }
    }
}

}  // namespace
