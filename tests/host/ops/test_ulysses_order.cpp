#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "xstage/ulysses/order.hpp"

namespace xstage::ulysses {
namespace {

TEST(UlyssesOrder, EveryOrderSendsEachRowToEachRankOnce) {
    rc::check([] {
        const int world = *rc::gen::inRange(1, 17);
        const std::int64_t rows = *rc::gen::inRange(1, 60);
        const int rank = *rc::gen::inRange(0, world);
        const auto order =
            *rc::gen::element(SendOrder::kPeerByPeer, SendOrder::kRotated, SendOrder::kInterleaved);
        std::set<std::pair<std::int64_t, int>> seen;
        for (std::int64_t i = 0; i < rows * world; ++i) {
            const SendStep step = send_step(order, rank, world, rows, i);
            RC_ASSERT(step.row >= 0 && step.row < rows && step.destination >= 0 &&
                      step.destination < world);
            RC_ASSERT(seen.emplace(step.row, step.destination).second);
        }
    });
}

TEST(UlyssesOrder, SendersStartAtDifferentDestinations) {
    for (SendOrder order : {SendOrder::kRotated, SendOrder::kInterleaved}) {
        std::set<int> first;
        for (int rank = 0; rank < 8; ++rank) {
            first.insert(send_step(order, rank, 8, 100, 0).destination);
            EXPECT_NE(send_step(order, rank, 8, 100, 0).destination, rank);
        }
        EXPECT_EQ(first.size(), 8u);
    }
    for (int rank = 0; rank < 8; ++rank)
        EXPECT_EQ(send_step(SendOrder::kPeerByPeer, rank, 8, 100, 0).destination, 0);
}

TEST(UlyssesOrder, InterleavedNeverSendsTwiceInARowToOnePeer) {
    for (std::int64_t i = 1; i < 8 * 50; ++i) {
        if (i % 8 == 0) continue;
        EXPECT_NE(send_step(SendOrder::kInterleaved, 3, 8, 50, i).destination,
                  send_step(SendOrder::kInterleaved, 3, 8, 50, i - 1).destination);
    }
}

TEST(UlyssesOrder, PagesInTurnAsDrawn) {
    // Rank 0 has three units of two rows, rank 1 one: 0 1 0 0 along the axis.
    AxisMap map;
    map.world = 2;
    map.unit_rows = 2;
    map.units[0] = 3;
    map.units[1] = 1;
    EXPECT_EQ(axis_row(map, 0, 0), 0);
    EXPECT_EQ(axis_row(map, 0, 1), 1);
    EXPECT_EQ(axis_row(map, 1, 0), 2);
    EXPECT_EQ(axis_row(map, 1, 1), 3);
    EXPECT_EQ(axis_row(map, 0, 2), 4);
    EXPECT_EQ(axis_row(map, 0, 5), 7);
}

}  // namespace
}  // namespace xstage::ulysses
