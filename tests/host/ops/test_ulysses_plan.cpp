#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <numeric>
#include <set>

#include "expect_error.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses/plan.hpp"

namespace xstage::ulysses {
namespace {

using test::bad_input;
using ::testing::HasSubstr;

struct Shape {
    std::int64_t rows;
    int heads, dim;
};
// The shapes that diffusion transformers call attention with.
const std::vector<Shape> kTable = {
    {1024, 24, 128},  {2048, 24, 128},  {4096, 40, 128},  {4608, 24, 128},  {4429, 38, 64},
    {7145, 24, 128},  {8704, 48, 128},  {16896, 24, 128}, {17776, 48, 64},  {27280, 24, 128},
    {32760, 12, 128}, {32760, 40, 128}, {75600, 40, 128}, {119056, 24, 128}};

Problem problem_of(const Shape& shape, int world) {
    Problem p;
    p.heads_q = shape.heads;
    p.head_dim = shape.dim;
    p.rows_q = split_rows(shape.rows, world);
    return p;
}

TEST(UlyssesRows, AnySequenceSplitsWithoutPadding) {
    // A length with no even half, as a video model produced it.
    EXPECT_EQ(split_rows(22177, 2), (std::vector<std::int64_t>{11089, 11088}));
    EXPECT_EQ(split_rows(144935, 4), (std::vector<std::int64_t>{36234, 36234, 36234, 36233}));
    EXPECT_EQ(split_rows(2, 4), (std::vector<std::int64_t>{1, 1, 0, 0}));
}

TEST(UlyssesHeads, UnevenHeadsAreWholeAndUnpadded) {
    const Heads heads = split_heads(30, 30, 4);
    EXPECT_EQ(heads.q, (std::vector<HeadRange>{{0, 8}, {8, 16}, {16, 23}, {23, 30}}));
    EXPECT_EQ(split_heads(38, 38, 4).max_q(), 10);
    EXPECT_EQ(split_heads(30, 30, 16).max_q(), 2);
}

TEST(UlyssesHeads, TooFewHeadsAreRefusedWithTheLimit) {
    EXPECT_THAT(bad_input([] { split_heads(12, 12, 16); }), HasSubstr("at most 12 ranks"));
    EXPECT_THAT(bad_input([] { split_heads(8, 3, 2); }), HasSubstr("must be a multiple"));
    EXPECT_THAT(bad_input([] { split_heads(6, 2, 8); }), HasSubstr("at most 6 ranks"));
}

TEST(UlyssesHeads, EveryHeadOnceInRegularGroups) {
    rc::check([] {
        const int kv = *rc::gen::inRange(1, 20);
        const int group = *rc::gen::inRange(1, 9);
        const int world = *rc::gen::inRange(1, 17);
        Heads heads;
        try {
            heads = split_heads(kv * group, kv, world);
        } catch (const Error&) {
            // Refused only where a rank must go without, or one key head's share must.
            RC_ASSERT(kv * group < world || (kv < world && group < (world + kv - 1) / kv));
            return;
        }
        int next = 0;
        for (int r = 0; r < world; ++r) {
            const HeadRange q = heads.q[r];
            const HeadRange k = heads.kv[r];
            RC_ASSERT(q.begin == next && q.count() > 0);
            next = q.end;
            RC_ASSERT(q.count() % k.count() == 0);
            for (int h = q.begin; h < q.end; ++h)
                RC_ASSERT(h / group == k.begin + (h - q.begin) / (q.count() / k.count()));
        }
        RC_ASSERT(next == kv * group);
    });
}

/// Follows every row of every kernel call to its address: each data row exactly once, by the query
/// that belongs there, and no pad row on a data row.
void expect_rows_arrive(const Plan& plan, std::size_t page) {
    const Problem& p = plan.problem;
    fabric::LayoutSpec spec{plan.stitched.kind,
                            plan.stitched.order,
                            plan.stitched.rows,
                            plan.stitched.row_bytes,
                            page,
                            128,
                            {}};
    const fabric::StitchedLayout layout = fabric::make_layout(spec);
    std::map<std::int64_t, std::pair<int, std::int64_t>> at_q;
    for (int r = 0; r < p.world(); ++r)
        for (std::int64_t row = 0; row < p.rows_q[r]; ++row) {
            const std::int64_t q = axis_row(plan.q_map, r, row);
            RC_ASSERT(q >= 0 && q < plan.q_rows);
            RC_ASSERT(q < plan.q_text_row || q >= plan.q_text_row + p.text_q);
            RC_ASSERT(at_q.emplace(q, std::pair(r, row)).second);
        }
    std::set<std::tuple<int, int, std::int64_t>> seen;
    for (const Block& b : plan.blocks)
        for (int i = 0; i < b.batch; ++i)
            for (std::int64_t j = 0; j < b.rows; ++j) {
                const std::int64_t q = b.q_row + i * b.q_batch_rows + j;
                const std::size_t at = b.out_offset + i * b.out_batch_bytes + j * b.out_row_bytes;
                RC_ASSERT(at + b.out_row_bytes <= layout.range_bytes);
                RC_ASSERT(plan.own_q || plan.copies_q || q < plan.q_rows);
                const auto data = at_q.find(q);
                const auto place = layout.owner_at(at);
                if (data == at_q.end()) {
                    if (!place) continue;
                    const std::int64_t held =
                        p.rows_q[place->owner] * (plan.tensors > 1 ? 1 : p.batch);
                    RC_ASSERT(place->row >= held);
                    continue;
                }
                const auto [rank, row] = data->second;
                if (place && place->owner != rank) {
                    // The pad rows of a short chunk read into the next rank's queries.
                    RC_ASSERT(place->row >= p.rows_q[place->owner]);
                    continue;
                }
                RC_ASSERT(place && place->owner == rank);
                if (plan.tensors == 1 && place->row >= p.batch * p.rows_q[rank]) continue;
                const std::int64_t expected =
                    plan.tensors > 1 ? row : b.sample * p.rows_q[rank] + row;
                RC_ASSERT(place->row == expected);
                RC_ASSERT(plan.receive_offset(plan.tensors > 1 ? 0 : b.sample, row, rank) ==
                          static_cast<std::size_t>(place->row) * layout.row_stride);
                RC_ASSERT(seen.emplace(b.sample, rank, row).second);
            }
    RC_ASSERT(static_cast<std::int64_t>(seen.size()) == p.batch * p.image_q());
}

TEST(UlyssesPlan, EveryRowOfEveryLayoutArrivesOnce) {
    rc::check([] {
        const int world = *rc::gen::inRange(1, 6);
        Problem p;
        p.batch = *rc::gen::inRange(1, 4);
        p.heads_q = world + *rc::gen::inRange(0, 4);
        p.head_dim = 8 * *rc::gen::inRange(1, 4);
        const bool even = *rc::gen::arbitrary<bool>();
        const std::int64_t rows = *rc::gen::inRange(1, 90);
        for (int r = 0; r < world; ++r) p.rows_q.push_back(even ? rows : *rc::gen::inRange(0, 90));
        if (p.image_q() == 0) p.rows_q[0] = 1;
        p.text_q = *rc::gen::inRange(0, 20);
        p.text_place = *rc::gen::element(TextPlace::kFront, TextPlace::kRear);
        PlanOptions options;
        options.page_bytes = 16384;
        options.own_q = *rc::gen::arbitrary<bool>();
        options.layout = *rc::gen::element(Layout::kAuto, Layout::kBatched, Layout::kPadded,
                                           Layout::kPages, Layout::kSplit);
        // A padded axis may be as wide as it likes here.
        options.max_memory_ratio = 1e9;
        options.tile_rows = 16;
        try {
            const Plan plan = make_plan(p, options);
            // Its rows are sent by a kernel of ours, not by the blocks' addresses.
            if (plan.layout != Layout::kScatter) expect_rows_arrive(plan, options.page_bytes);
        } catch (const Error& e) {
            RC_ASSERT(options.layout == Layout::kBatched && e.kind() == ErrorKind::kBadInput);
        }
    });
}

class UlyssesTable : public ::testing::TestWithParam<int> {};

TEST_P(UlyssesTable, AtMostThreeInAHundredTilesAreAdded) {
    for (const Shape& shape : kTable) {
        if (shape.heads < GetParam()) continue;
        for (bool own : {true, false}) {
            PlanOptions options;
            options.own_q = own;
            const Plan plan = make_plan(problem_of(shape, GetParam()), options);
            EXPECT_LE(plan.tile_ratio(), 1.03) << shape.rows << " rows: " << describe(plan);
            EXPECT_EQ(plan.tiles_dense, (shape.rows + 127) / 128);
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Ranks, UlyssesTable, ::testing::Values(1, 2, 4, 8));

TEST(UlyssesPlan, OffsetsPassTheLimitsOf32Bits) {
    Problem p;
    p.heads_q = 56;
    p.head_dim = 128;
    p.rows_q = split_rows(600000, 2);
    for (Layout layout : {Layout::kBatched, Layout::kPadded, Layout::kSplit}) {
        PlanOptions options;
        options.layout = layout;
        const Plan plan = make_plan(p, options);
        // 300000 rows of 56 x 128 are 2 150 400 000 elements, past 2^31.
        EXPECT_GE(plan.receive_offset(0, 299999, 1), std::size_t{299999} * 56 * 128 * 2);
        const Block& last = plan.blocks.back();
        EXPECT_GE(last.out_offset + (last.batch - 1) * last.out_batch_bytes +
                      (last.rows - 1) * last.out_row_bytes,
                  std::size_t{599999} * 56 * 128 * 2);
    }
}

TEST(UlyssesPlan, OneCallForUnevenRowsInMemoryOfOurs) {
    Problem p = problem_of({22177, 40, 128}, 2);
    PlanOptions options;
    options.layout = Layout::kBatched;
    const Plan own = make_plan(p, options);
    ASSERT_EQ(own.blocks.size(), 1u);
    EXPECT_EQ(own.blocks[0].rows, 11089);
    options.own_q = false;
    // The caller's Q ends after its last row, so the shorter chunk is a call of its own.
    const Plan foreign = make_plan(p, options);
    ASSERT_EQ(foreign.blocks.size(), 2u);
    EXPECT_EQ(foreign.blocks[1].rows, 11088);
}

TEST(UlyssesPlan, WideRowsAreTheResultsPitch) {
    Problem p = problem_of({4608, 24, 128}, 2);
    p.out_pitch = 24 * 128 + 12288;
    PlanOptions options;
    options.layout = Layout::kBatched;
    EXPECT_EQ(make_plan(p, options).out_row_bytes(), std::size_t{(24 * 128 + 12288) * 2});
}

TEST(UlyssesPlan, SaysWhatIsWrong) {
    const Problem good = problem_of({100, 4, 16}, 2);
    const auto wrong = [&](auto change, const char* text) {
        Problem p = good;
        change(p);
        EXPECT_THAT(bad_input([&] { make_plan(p); }), HasSubstr(text));
    };
    wrong([](Problem& p) { p.rows_q = {0, 0}; }, "no rank has a query row");
    wrong([](Problem& p) { p.rows_q = {-1, 5}; }, "rank 0 has -1 rows");
    wrong([](Problem& p) { p.rows_kv = {1}; }, "rows_kv names 1 ranks");
    wrong([](Problem& p) { p.head_dim = 7; }, "head_dim 7");
    wrong([](Problem& p) { p.heads_kv = 3; }, "multiple of 3 key heads");
    wrong([](Problem& p) { p.out_pitch = 10; }, "out_pitch 10");
    wrong([](Problem& p) { p.batch = 0; }, "batch of 0");
    wrong(
        [](Problem& p) {
            p.with_lengths = true;
            p.text_kv = 4;
            p.text_place = TextPlace::kFront;
        },
        "must stand last");
}

// Overheads in us of FlashAttention-3 on two H200, heads per GPU and rows as given: every row to
// the peer, batched (worse of the two orders), padded with pages in turn (docs/ulysses.md).
struct Measured {
    int heads;
    std::int64_t rows;
    double all_remote, batched, padded;
};
const std::vector<Measured> kMeasured = {{12, 2048, 15.0, 8.4, 3.3},
                                         {12, 4096, 22.5, 15.0, 1.8},
                                         {20, 4096, 16.2, 13.7, 4.4},
                                         {12, 8192, 20.3, 21.0, -4.9},
                                         {20, 8192, 12.7, 12.7, 0.0}};

TEST(UlyssesPrediction, RanksTheOrdersAsMeasured) {
    for (const Measured& m : kMeasured) {
        const auto tiles = static_cast<std::size_t>(m.rows / 128);
        const NodeFacts node;
        const auto predict = [&](const std::vector<TileRun>& runs, int heads) {
            return predict_runs(node, runs, heads, m.rows, 128, 128, 0).overhead_ns / 1000;
        };
        const double all_remote = predict({{0, std::vector<int>(tiles, 1)}}, m.heads);
        std::vector<int> halves(tiles * m.heads, 0);
        std::fill(halves.begin() + halves.size() / 2, halves.end(), 1);
        const double batched = predict({{0, halves}}, 1);
        std::vector<int> turns(tiles);
        for (std::size_t t = 0; t < tiles; ++t) turns[t] = t % 2;
        const double padded = predict({{0, turns}}, m.heads);
        EXPECT_GT(all_remote, batched) << m.heads << " x " << m.rows;
        EXPECT_GT(batched, padded) << m.heads << " x " << m.rows;
        EXPECT_GT(m.batched, m.padded);
        EXPECT_LT(std::abs(all_remote - m.all_remote), 12.0) << all_remote;
        EXPECT_LT(std::abs(batched - m.batched), 12.0) << batched;
        EXPECT_LT(std::abs(padded - m.padded), 12.0) << padded;
    }
}

// With all ranks on one GPU no store crosses a link, and packed memory decides.
TEST(UlyssesPlan, OneGpuTakesThePackedLayout) {
    PlanOptions options;
    options.node = NodeFacts::one_gpu();
    for (const Shape& shape : kTable)
        for (int world : {2, 4}) {
            const Plan plan = make_plan(problem_of(shape, world), options);
            options.layout = Layout::kPages;
            const Plan pages = make_plan(problem_of(shape, world), options);
            options.layout = Layout::kAuto;
            EXPECT_LE(plan.out_bytes, pages.out_bytes) << describe(plan);
            EXPECT_LE(plan.prediction.overhead_ns,
                      pages.prediction.overhead_ns + 0.006 * pages.prediction.plain_ns)
                << describe(plan);
        }
}

TEST(UlyssesPlan, NeverPredictedSlowerThanTheSerialWay) {
    rc::check([] {
        const int world = *rc::gen::inRange(1, 9);
        Problem p;
        p.batch = *rc::gen::inRange(1, 3);
        p.heads_q = world * *rc::gen::inRange(1, 7);
        p.head_dim = *rc::gen::element(64, 128);
        for (int r = 0; r < world; ++r) p.rows_q.push_back(*rc::gen::inRange(1, 6000));
        PlanOptions options;
        options.own_q = *rc::gen::arbitrary<bool>();
        options.peers = *rc::gen::arbitrary<bool>();
        if (*rc::gen::arbitrary<bool>()) options.node = NodeFacts::one_gpu();
        const Plan plan = make_plan(p, options);
        options.layout = Layout::kScatter;
        const Plan serial = make_plan(p, options);
        const auto total = [](const Plan& x) {
            return x.prediction.plain_ns + x.prediction.overhead_ns;
        };
        RC_ASSERT(total(plan) <= 1.005 * total(serial));
        RC_ASSERT(serial.tiles == serial.tiles_dense);
    });
}

TEST(UlyssesPlan, MemoryIsTheCallersLimit) {
    PlanOptions options;
    const Problem p = problem_of({4096, 40, 128}, 2);
    EXPECT_GT(make_plan(p, options).memory_ratio, 1.5);
    options.max_memory_ratio = 1.2;
    const Plan tight = make_plan(p, options);
    EXPECT_LE(tight.memory_ratio, 1.2) << describe(tight);
}

TEST(UlyssesPlan, PeersNeedAKernelThatKnowsThem) {
    PlanOptions options;
    const Problem p = problem_of({4096, 40, 128}, 2);
    options.layout = Layout::kPeers;
    EXPECT_THAT(bad_input([&] { make_plan(p, options); }), HasSubstr("this kernel"));
    options.peers = true;
    options.layout = Layout::kAuto;
    const Plan plan = make_plan(p, options);
    // Alternating destinations and packed memory at once.
    EXPECT_EQ(plan.layout, Layout::kPeers) << describe(plan);
    EXPECT_DOUBLE_EQ(plan.memory_ratio, 1.0);
    EXPECT_EQ(plan.tiles, plan.tiles_dense);
}

TEST(UlyssesPlan, ShortSequencesAlternateDestinationsAndLongOnesStayPacked) {
    PlanOptions options;
    const Plan four = make_plan(problem_of({4096, 40, 128}, 2), options);
    EXPECT_TRUE(four.layout == Layout::kPages || four.layout == Layout::kPadded) << describe(four);
    options.layout = Layout::kBatched;
    const Plan batched = make_plan(problem_of({4096, 40, 128}, 2), options);
    EXPECT_LT(four.prediction.share(), batched.prediction.share());
    const Plan longer = make_plan(problem_of({75600, 40, 128}, 2), options);
    EXPECT_LT(longer.prediction.share(), 0.005);
}

}  // namespace
}  // namespace xstage::ulysses
