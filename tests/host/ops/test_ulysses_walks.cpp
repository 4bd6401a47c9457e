// The pieces that the groups of a launch take: every head of every row once for each destination.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <map>

#include "ulysses/walks.hpp"

namespace xstage::ulysses::kernels {
namespace {

using Sent = std::map<std::array<std::int64_t, 5>, int>;  // part, sample, row, destination, head

HeadScatter any_scatter(int world) {
    HeadScatter s;
    s.world = world;
    s.rank = *rc::gen::inRange(0, world);
    s.batch = *rc::gen::inRange(1, 4);
    s.rows = *rc::gen::inRange(0, 12);
    s.order =
        *rc::gen::element(SendOrder::kPeerByPeer, SendOrder::kRotated, SendOrder::kInterleaved);
    for (int p = 0; p < world; ++p) s.head_count[p] = *rc::gen::inRange(0, 7);
    if (*rc::gen::arbitrary<bool>()) s.norm.kind = NormKind::kPerHead;
    return s;
}

void send(Sent& sent, const HeadScatter& s, int part, const Piece& piece) {
    int to = piece.to;
    int slot = piece.slot;
    for (int h = 0; h < piece.heads; ++h, ++slot) {
        while (slot >= s.head_count[to]) {
            slot -= s.head_count[to];
            to = (to + 1) % s.world;
        }
        ++sent[{part, piece.b, piece.row, to, slot}];
    }
}

RC_GTEST_PROP(UlyssesWalks, EveryHeadGoesOutOnce, ()) {
    HeadExchange all;
    all.count = *rc::gen::inRange(1, 4);
    const int world = *rc::gen::inRange(1, 6);
    for (int p = 0; p < all.count; ++p) all.part[p] = any_scatter(world);
    const int plain = 2 * *rc::gen::inRange(1, 4);  // even, as pairs are loaded
    const int longest = 2 * *rc::gen::inRange(1, 9);
    const std::int64_t groups = *rc::gen::inRange(1, 60);
    Walks walks = walks_of(all, plain, longest);
    set_steps(all, walks, groups);

    Sent sent;
    for (std::int64_t g = 0; g < groups; ++g) {
        std::int64_t i = g;
        for (int w = 0; w < walks.count; ++w) {
            const Walk& walk = walks.walk[w];
            const HeadScatter& s = all.part[walks.part[w]];
            if (i < walk.count)
                for (PieceCursor at(s, walk, i); i < walk.count; i += groups, at.advance(s, walk)) {
                    const Piece piece = at.piece(walk);
                    RC_ASSERT(piece.heads >= 1);
                    RC_ASSERT(piece.heads <= (is_plain(s) ? plain : longest));
                    send(sent, s, walks.part[w], piece);
                }
            i -= walk.count;
        }
    }
    std::size_t expected = 0;
    for (int p = 0; p < all.count; ++p) {
        const HeadScatter& s = all.part[p];
        expected += static_cast<std::size_t>(s.rows * s.batch * sent_heads(s));
    }
    RC_ASSERT(sent.size() == expected);
    for (const auto& [key, times] : sent) {
        const HeadScatter& s = all.part[key[0]];
        RC_ASSERT(times == 1);
        RC_ASSERT(key[1] < s.batch);
        RC_ASSERT(key[2] < s.rows);
    }
}

TEST(UlyssesWalks, SendersBeginWithDifferentDestinations) {
    HeadExchange all;
    all.count = 1;
    HeadScatter& s = all.part[0];
    s.world = 4;
    s.rows = 8;
    for (int p = 0; p < 4; ++p) s.head_count[p] = 2;
    for (s.rank = 0; s.rank < 4; ++s.rank) {
        const Walks walks = walks_of(all, 8, 8);
        ASSERT_EQ(walks.count, 1);
        for (int row = 0; row < 8; ++row)
            EXPECT_EQ(PieceCursor(s, walks.walk[0], row).piece(walks.walk[0]).to,
                      (s.rank + 1 + row) % 4);
    }
}

}  // namespace
}  // namespace xstage::ulysses::kernels
