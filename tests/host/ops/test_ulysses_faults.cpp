// Faults that users reported of other implementations, each as the smallest input that shows its
// kind. The list, with what happened and the test that guards it: docs/ulysses.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "fabric_suite.hpp"
#include "host/fabric/groups.hpp"
#include "ulysses_suite.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

using fabric::Fabric;
using fabric::testing::fresh_name;
using fabric::testing::host_options;
using fabric::testing::run_processes;
using fabric::testing::run_threads;
using suite::Case;
using suite::HostDevice;
using suite::Whole;
using ::testing::AllOf;
using ::testing::HasSubstr;

fabric::FabricOptions options(const std::string& name, int rank, int world) {
    fabric::FabricOptions o = host_options(name, rank, world);
    o.host_page_bytes = 16384;
    return o;
}

std::vector<std::string> on_ranks(int world,
                                  const std::function<void(Fabric&, HostDevice&, int)>& body) {
    const std::string name = fresh_name();
    return run_threads(world, [&](int rank) {
        Fabric group(options(name, rank, world));
        HostDevice device;
        body(group, device, rank);
        group.barrier();
    });
}

Problem problem(std::vector<std::int64_t> rows, int heads, int dim) {
    Problem p;
    p.heads_q = heads;
    p.head_dim = dim;
    p.rows_q = std::move(rows);
    return p;
}

void expect_whole(Case& c, const Options& o = {}) {
    const Whole w = suite::whole(c, reference_attention);
    const auto errors =
        on_ranks(c.problem.world(), [&](Fabric& group, HostDevice& device, int rank) {
            UlyssesAttention attention(group, c.problem, o);
            const auto r = attention.attend({suite::shard(device, c, rank)});
            const std::string differs = suite::compare(device, c, w, r[0], rank);
            if (!differs.empty()) throw std::runtime_error(differs);
        });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// 1: a sequence that does not divide by the ranks. 22177 rows at the sizes of a test: 221 over two.
TEST(UlyssesFault01, OddSequence) {
    Case c(problem(split_rows(221, 2), 2, 8));
    expect_whole(c);
}

// 2: heads that do not divide. A head that a peer pads must reach nobody: each rank computes its
// own.
TEST(UlyssesFault02, HeadsThatDoNotDivideAreNeitherPaddedNorLost) {
    for (const auto& [heads, world] :
         std::vector<std::pair<int, int>>{{30, 4}, {38, 4}, {30, 16}}) {
        std::atomic<int> computed = 0;
        Options o;
        o.plug = {[&](const AttentionCall& call) {
                      computed += call.heads_q * call.batch * static_cast<int>(call.rows_q);
                      reference_attention(call);
                  },
                  "counting", true, 4};
        o.plan.layout = Layout::kSplit;
        Case c(problem(std::vector<std::int64_t>(static_cast<std::size_t>(world), 3), heads, 8));
        expect_whole(c, o);
        EXPECT_EQ(computed, heads * 3 * world);
    }
}

TEST(UlyssesFault02, FewerHeadsThanRanksIsAnErrorOnEveryRank) {
    const auto errors = on_ranks(4, [&](Fabric& group, HostDevice&, int) {
        UlyssesAttention attention(group, problem({4, 4, 4, 4}, 3, 8));
    });
    for (const std::string& e : errors)
        EXPECT_THAT(e, HasSubstr("3 heads cannot be spread over 4 ranks"));
}

// 3: local attention instead of the whole, seen as noise in the last frames. The last rank's rows
// must depend on the first rank's keys.
TEST(UlyssesFault03, LastRanksRowsSeeTheFirstRanksKeys) {
    Case c(problem({16, 16}, 2, 8));
    expect_whole(c);
    const Whole before = suite::whole(c, reference_attention);
    // Rank 0's values move by one: every row of rank 1 must move too.
    std::mt19937 random(99);
    Case changed = c;
    suite::Tensor fresh(c.problem.dtype, 1, 16, 2, 8);
    fresh.fill(random);
    fresh.copy_rows(0, 16, 0, 2, changed.v, 0);
    expect_whole(changed);
    const Whole after = suite::whole(changed, reference_attention);
    for (std::int64_t row = 16; row < 32; ++row) {
        bool same = true;
        for (int e = 0; e < 8; ++e)
            same = same && before.out.at(0, row, 0, e) == after.out.at(0, row, 0, e);
        EXPECT_FALSE(same) << row;
    }
}

// 5: prompts of different lengths in one batch.
TEST(UlyssesFault05, PromptsOfDifferentLengthsInABatch) {
    Problem p = problem({8, 8}, 2, 8);
    p.batch = 2;
    p.text_q = p.text_kv = 64;
    p.with_lengths = true;
    for (Layout layout : {Layout::kBatched, Layout::kPages}) {
        Case c(p);
        c.lengths = {16 + 3, 16 + 64};
        Options o;
        o.plan.layout = layout;
        expect_whole(c, o);
    }
}

// 7: products that pass 32 bits are in test_ulysses_plan (offsets) and test_ulysses_transform
// (views).

// 8: ranks that mean different shapes must fail together, not hang.
TEST(UlyssesFault08, RanksThatDisagreeAllFail) {
    const auto errors = on_ranks(2, [&](Fabric& group, HostDevice&, int rank) {
        const std::int64_t rows = rank == 0 ? 2304 : 2300;
        UlyssesAttention attention(group, problem({rows, rows}, 2, 8));
    });
    for (const std::string& e : errors) EXPECT_THAT(e, AllOf(HasSubstr("2304"), HasSubstr("2300")));
}

TEST(UlyssesFault08, OneRanksBadShapeFailsAll) {
    const auto errors = on_ranks(2, [&](Fabric& group, HostDevice&, int rank) {
        UlyssesAttention attention(group, problem({4, 4}, 2, rank == 0 ? 8 : 7));
    });
    for (const std::string& e : errors) EXPECT_NE(e, "");
}

// 10: calls of any number and order on the same buffers is
// UlyssesHost.BuffersInAnyTurnAndDeferredWaits and, captured, UlyssesGraph in tests/gpu/ulysses.

// 11: a longer sequence after a short one, and a peer that is late for its first call.
TEST(UlyssesFault11, GrowingSequenceAndALatePeer) {
    Case small(problem({6, 6}, 2, 8)), large(problem({90, 90}, 2, 8), 2);
    const Whole w_small = suite::whole(small, reference_attention);
    const Whole w_large = suite::whole(large, reference_attention);
    std::atomic<int> arrived = 0;
    const auto errors = on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention first(group, small.problem);
        // Rank 1 begins only when rank 0 is already inside its call, at its kernel.
        Options o;
        o.plug = {[&](const AttentionCall& call) {
                      ++arrived;
                      reference_attention(call);
                  },
                  "late", true, 128};
        o.attend = false;
        UlyssesAttention late(group, small.problem, o);
        while (rank == 1 && arrived == 0) std::this_thread::yield();
        const auto a =
            late.attend_and_scatter({suite::gather(device, small, late.plan().heads, rank)});
        SUITE_REQUIRE(suite::compare(device, small, w_small, a[0], rank).empty());
        UlyssesAttention grown(group, large.problem);
        const auto b = grown.attend({suite::shard(device, large, rank)});
        SUITE_REQUIRE(suite::compare(device, large, w_large, b[0], rank).empty());
        const auto c = first.attend({suite::shard(device, small, rank)});
        SUITE_REQUIRE(suite::compare(device, small, w_small, c[0], rank).empty());
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(UlyssesFault11, APeerThatNeverComesIsNamedWithinTheLimit) {
    const std::string name = fresh_name();
    Case c(problem({4, 4}, 2, 8));
    const auto errors = run_threads(2, [&](int rank) {
        fabric::FabricOptions o = options(name, rank, 2);
        o.wait_timeout = std::chrono::milliseconds(200);
        Fabric group(o);
        HostDevice device;
        UlyssesAttention attention(group, c.problem);
        group.agree("both are here");
        if (rank == 0) {
            const Result r = attention.attend({suite::shard(device, c, 0)})[0];
            // Whoever does not look at the error must still not take the rows for a result.
            const auto bytes = suite::download(device, 0, r.samples[0], 4, 2, 8, 2);
            for (std::size_t i = 0; i < bytes.size(); i += 2) {
                Bf16 x;
                std::memcpy(&x, &bytes[i], 2);
                SUITE_REQUIRE(std::isnan(x.value()));
            }
            group.check();
        }
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 1"));
    EXPECT_EQ(errors[1], "");
}

// 12: rows must be whole when the signal is seen: UlyssesOrdering in tests/gpu/ulysses.
// 14: a graph break under torch.compile: tests/python.

// 15: large fp16 values, and a sample without any valid key.
TEST(UlyssesFault15, LargeValuesInFp16StayFinite) {
    Problem p = problem({12, 12}, 2, 16);
    p.dtype = fabric::DType::kF16;
    Case c(p, 5, 40.0f);
    const Whole w = suite::whole(c, reference_attention);
    for (std::int64_t row = 0; row < 24; ++row)
        for (int e = 0; e < 16; ++e) ASSERT_TRUE(std::isfinite(w.out.at(0, row, 1, e)));
    expect_whole(c);
}

TEST(UlyssesFault15, SampleWithoutKeysGivesZeroAndMinusInfinity) {
    Problem p = problem({3, 4}, 2, 8);
    p.batch = 2;
    p.with_lengths = true;
    p.with_lse = true;
    Case c(p);
    c.lengths = {7, 0};
    const auto errors = on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention attention(group, p);
        const Result r = attention.attend({suite::shard(device, c, rank)})[0];
        const auto bytes = suite::download(device, rank, r.samples[1], p.rows_q[rank], 2, 8, 2);
        for (std::byte b : bytes) SUITE_REQUIRE(b == std::byte{0});
        for (int h = 0; h < 2; ++h)
            for (std::int64_t row = 0; row < p.rows_q[rank]; ++row)
                SUITE_REQUIRE(r.lse.data[r.lse.batch_stride + h * r.lse.head_stride + row] ==
                              -INFINITY);
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// 17: a rank that dies inside a call.
TEST(UlyssesFault17, ADeadRankEndsTheCallOfTheOthersAndANewGroupWorks) {
    const std::string name = fresh_name();
    Case c(problem({4, 4}, 2, 8));
    const auto body = [&](const std::string& group_name, int rank, bool die) {
        Fabric group(options(group_name, rank, 2));
        HostDevice device;
        Options o;
        o.plug = {[&](const AttentionCall& call) {
                      if (die && rank == 1) ::raise(SIGKILL);
                      reference_attention(call);
                  },
                  "dying", true, 128};
        UlyssesAttention attention(group, c.problem, o);
        attention.attend({suite::shard(device, c, rank)});
        group.check();
        group.barrier();
    };
    const auto errors = run_processes(2, [&](int rank) { body(name, rank, true); });
    EXPECT_THAT(errors[0], HasSubstr("rank 1"));
    EXPECT_EQ(errors[1], "killed");
    for (const std::string& e :
         run_processes(2, [&](int rank) { body(name + "-again", rank, false); }))
        EXPECT_EQ(e, "");
}

// Rows between chunks and behind short ones are computed from whatever the memory holds.
TEST(UlyssesPadding, NanInPadRowsNeverShows) {
    for (Layout layout : {Layout::kPadded, Layout::kPages, Layout::kBatched}) {
        Options o;
        o.plan.layout = layout;
        o.plan.max_memory_ratio = 1e9;
        int pads = 0;
        std::mutex lock;
        Case c(problem({7, 6}, 2, 8));
        o.plug = {[&](const AttentionCall& call) {
                      // Every query row that is no data row becomes NaN before the kernel sees it.
                      AttentionCall poisoned = call;
                      const std::int64_t span =
                          call.batch * call.q.batch_stride + call.rows_q * call.q.row_stride;
                      std::vector<Bf16> q(static_cast<std::size_t>(span) + 64, Bf16{0xffff});
                      PlanOptions plan_options = o.plan;
                      plan_options.page_bytes = 16384;
                      plan_options.tile_rows = 4;
                      const Plan plan = make_plan(c.problem, plan_options);
                      const auto* from = static_cast<const Bf16*>(call.q.data);
                      const std::int64_t width = call.heads_q * 8;
                      int rows = 0;
                      for (int r = 0; r < 2; ++r)
                          for (std::int64_t row = 0; row < c.problem.rows_q[r]; ++row, ++rows)
                              std::copy_n(from + axis_row(plan.q_map, r, row) * width, width,
                                          q.begin() + axis_row(plan.q_map, r, row) * width);
                      poisoned.q.data = q.data();
                      reference_attention(poisoned);
                      const std::lock_guard hold(lock);
                      pads += static_cast<int>(call.batch * call.rows_q) - rows;
                  },
                  "poisoning", true, 4};
        expect_whole(c, o);
        EXPECT_GT(pads, 0) << name_of(layout);
    }
}

}  // namespace
}  // namespace xstage::ulysses
