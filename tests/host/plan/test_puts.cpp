#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "expect_error.hpp"
#include "xstage/plan/puts.hpp"

namespace xstage::plan {
namespace {

TEST(PutMessageTime, IsWhatOneWorksOutByHand) {
    const PutCosts costs{50, 1000, 500};
    // Two chunks of 100 000 bytes: 200 ns to pack one, twice 2000 ns on the wire, 200 ns to unpack.
    EXPECT_DOUBLE_EQ(put_message_ns(200'000, 100'000, costs), 4400);
    // Chunks of 10 000 bytes take 200 ns on the wire, but 1000 ns each to issue.
    EXPECT_DOUBLE_EQ(put_message_ns(200'000, 10'000, costs), 20 + 20 * 1000 + 20);
    // A rest of 50 000: it is packed and unpacked last, and takes as long as its own transfer.
    EXPECT_DOUBLE_EQ(put_message_ns(250'000, 100'000, costs), 200 + 2 * 2000 + 1000 + 100);
    EXPECT_DOUBLE_EQ(put_message_ns(0, 10, costs), 0);
}

RC_GTEST_PROP(PutChunk, IsWithinATwentiethOfTheBestThatASearchFinds, ()) {
    const PutCosts costs{*rc::gen::inRange(10, 200) * 1.0, *rc::gen::inRange(100, 5000) * 1.0,
                         *rc::gen::inRange(200, 3000) * 1.0};
    const auto bytes = static_cast<std::size_t>(*rc::gen::inRange(1 << 20, 1 << 28));
    double best = put_message_ns(bytes, bytes, costs);
    for (double chunk = 1024; chunk < static_cast<double>(bytes); chunk *= 1.02)
        best = std::min(best, put_message_ns(bytes, static_cast<std::size_t>(chunk), costs));
    RC_ASSERT(put_message_ns(bytes, put_chunk_bytes(bytes, costs), costs) <= 1.05 * best);
}

TEST(PutChunk, NeverExceedsTheMessageNorRefusesASmallOne) {
    EXPECT_EQ(put_chunk_bytes(100, {}), 100u);
    EXPECT_EQ(put_chunk_bytes(0, {}), 1u);
    // 1500 ns at 50 bytes/ns.
    EXPECT_EQ(put_chunk_bytes(std::size_t{1} << 30, {}), 75'000u);
    PutCosts broken;
    broken.rate = 0;
    test::bad_input([&] { put_chunk_bytes(100, broken); });
}

/// Parts of rows, and what the plan is asked.
struct Parts {
    std::vector<std::int64_t> rows;
    std::vector<RowPart> parts;
    PutShape shape;
};

Parts any_shape() {
    Parts all;
    PutShape& shape = all.shape;
    const int world = *rc::gen::inRange(1, 9);
    std::size_t at = 0;
    for (int r = 0; r < world; ++r) {
        all.rows.push_back(*rc::gen::inRange(0, 300));
        shape.node.push_back(*rc::gen::inRange(0, 3));
        const auto bytes = static_cast<std::size_t>(16 * *rc::gen::inRange(0, 40));
        all.parts.push_back({at, bytes});
        at += bytes;
    }
    shape.chunk_bytes = static_cast<std::size_t>(*rc::gen::inRange(0, 20'000));
    shape.stored = stored_parts(all.rows, at, all.parts);
    return all;
}

// Every row that a rank of one node stores for a rank of another crosses once, and nothing else.
RC_GTEST_PROP(PutPlan, CarriesEachRowBetweenNodesOnce, ()) {
    const auto [owned, parts, shape] = any_shape();
    const PutPlan plan = plan_puts(shape);
    const int world = static_cast<int>(owned.size());
    for (int s = 0; s < world; ++s)
        for (int d = 0; d < world; ++d) {
            std::int64_t rows = 0;
            int messages = 0;
            for (const PutMessage& m : plan.messages)
                if (m.source == s && m.dest == d) {
                    ++messages;
                    for (std::int64_t c = 0; c < m.chunks; ++c) {
                        RC_ASSERT(m.rows_of(c) > 0);
                        rows += m.rows_of(c);
                    }
                    RC_ASSERT(m.block.offset == parts[s].offset);
                    RC_ASSERT(m.block.bytes == parts[s].bytes);
                }
            const bool crosses = shape.node[s] != shape.node[d] && parts[s].bytes > 0;
            RC_ASSERT(messages <= 1);
            RC_ASSERT(rows == (crosses ? owned[d] : 0));
        }
}

// A rank's outbox, inbox and signals are each cut into pieces that do not meet and fit the size.
RC_GTEST_PROP(PutPlan, PlacesOverlapNowhere, ()) {
    const PutShape shape = any_shape().shape;
    const PutPlan plan = plan_puts(shape);
    using Span = std::pair<std::size_t, std::size_t>;
    const auto apart = [](std::vector<Span> spans, std::size_t size) {
        std::sort(spans.begin(), spans.end());
        std::size_t end = 0;
        for (const auto& [from, bytes] : spans) {
            RC_ASSERT(from >= end);
            end = from + bytes;
        }
        RC_ASSERT(end <= size);
    };
    for (int r = 0; r < static_cast<int>(shape.node.size()); ++r) {
        std::vector<Span> outbox, inbox, signals;
        for (const PutMessage& m : plan.from(r))
            outbox.push_back(
                {m.outbox_offset, static_cast<std::size_t>(m.block.rows) * m.block.bytes});
        for (const PutMessage& m : plan.to(r)) {
            inbox.push_back(
                {m.inbox_offset, static_cast<std::size_t>(m.block.rows) * m.block.bytes});
            signals.push_back({m.first_signal, static_cast<std::size_t>(m.chunks)});
        }
        apart(outbox, plan.outbox_bytes);
        apart(inbox, plan.inbox_bytes);
        apart(signals, plan.signals);
    }
}

TEST(PutPlan, FirstDestinationsDiffer) {
    const PutShape shape{{0, 1, 2, 3},
                         [](int, int) {
                             return std::vector<PutBlock>{{0, 16, 8, 16}};
                         },
                         0,
                         {}};
    const PutPlan plan = plan_puts(shape);
    std::vector<int> first;
    for (int r = 0; r < 4; ++r) first.push_back(plan.from(r).at(0).dest);
    std::sort(first.begin(), first.end());
    EXPECT_EQ(first, (std::vector<int>{0, 1, 2, 3}));
}

TEST(PutPlan, EveryBlockOfAPairIsAMessage) {
    const PutShape shape{{0, 1},
                         [](int source, int) {
                             return source == 0 ? std::vector<PutBlock>{{0, 64, 3, 64},
                                                                        {4096, 128, 0, 64},
                                                                        {8192, 128, 5, 32}}
                                                : std::vector<PutBlock>{};
                         },
                         0,
                         {}};
    const PutPlan plan = plan_puts(shape);
    ASSERT_EQ(plan.from(0).size(), 2u);
    EXPECT_EQ(plan.from(0)[0].block, (PutBlock{0, 64, 3, 64}));
    EXPECT_EQ(plan.from(0)[1].block, (PutBlock{8192, 128, 5, 32}));
    EXPECT_TRUE(plan.from(1).empty());
}

}  // namespace
}  // namespace xstage::plan
