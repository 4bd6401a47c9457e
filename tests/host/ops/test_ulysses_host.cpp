#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fabric_suite.hpp"
#include "host/fabric/groups.hpp"
#include "ulysses_suite.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

using fabric::Fabric;
using fabric::testing::fresh_name;
using fabric::testing::host_options;
using fabric::testing::run_threads;
using suite::Case;
using suite::HostDevice;
using suite::Whole;

constexpr std::size_t kPage = 16384;

Options small(Layout layout) {
    Options o;
    o.plan.layout = layout;
    o.plan.max_memory_ratio = 1e9;
    if (layout == Layout::kPeers)
        o.plug = {suite::with_peers(reference_attention), "peers", true, 128, true};
    return o;
}

/// Runs `body(fabric, device, rank)` on a thread per rank.
void on_ranks(int world, const std::function<void(Fabric&, HostDevice&, int)>& body) {
    const std::string name = fresh_name();
    const auto errors = run_threads(world, [&](int rank) {
        fabric::FabricOptions options = host_options(name, rank, world);
        options.host_page_bytes = kPage;
        Fabric group(options);
        HostDevice device;
        body(group, device, rank);
        group.barrier();  // nobody's memory goes while a peer still stores
    });
    for (int r = 0; r < world; ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

/// Both entries, several calls, against the whole.
void expect_bit_identical(const Problem& problem, const Options& options, bool fused = false) {
    Case c(problem, 7);
    const Whole w = suite::whole(c, reference_attention);
    on_ranks(problem.world(), [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention attention(group, problem, options);
        for (int call = 0; call < 3; ++call) {
            const auto results = attention.attend({suite::shard(device, c, rank, fused)});
            const std::string differs = suite::compare(device, c, w, results[0], rank);
            if (!differs.empty()) throw std::runtime_error("attend: " + differs);
        }
        Options scatter = options;
        scatter.attend = false;
        if (scatter.plan.layout == Layout::kBatched && !problem.rows_q.empty()) {
            // A foreign Q does not stretch to uneven chunks.
            try {
                PlanOptions foreign = scatter.plan;
                foreign.own_q = false;
                make_plan(problem, foreign);
            } catch (const Error&) {
                return;
            }
        }
        UlyssesAttention half(group, problem, scatter);
        for (int call = 0; call < 3; ++call) {
            const auto results =
                half.attend_and_scatter({suite::gather(device, c, half.plan().heads, rank)});
            const std::string differs = suite::compare(device, c, w, results[0], rank);
            if (!differs.empty()) throw std::runtime_error("attend_and_scatter: " + differs);
        }
    });
}

Problem problem(int world, std::vector<std::int64_t> rows, int heads = 5, int dim = 16) {
    Problem p;
    p.heads_q = heads;
    p.head_dim = dim;
    rows.resize(static_cast<std::size_t>(world), rows.back());
    p.rows_q = std::move(rows);
    p.with_lse = true;
    return p;
}

class UlyssesLayouts : public ::testing::TestWithParam<std::tuple<Layout, int>> {
  protected:
    Layout layout() const { return std::get<0>(GetParam()); }
    int world() const { return std::get<1>(GetParam()); }
};

TEST_P(UlyssesLayouts, EvenRows) {
    expect_bit_identical(problem(world(), {24}), small(layout()));
}

TEST_P(UlyssesLayouts, UnevenRowsAndHeads) {
    if (layout() == Layout::kBatched && world() == 1) GTEST_SKIP() << "one rank is even by itself";
    expect_bit_identical(problem(world(), {23, 22}, 6), small(layout()), true);
}

TEST_P(UlyssesLayouts, TwoSamples) {
    Problem p = problem(world(), {17});
    p.batch = 2;
    expect_bit_identical(p, small(layout()));
}

TEST_P(UlyssesLayouts, ReplicatedTextLastWithKeyLengths) {
    Problem p = problem(world(), {19});
    p.batch = 2;
    p.text_q = p.text_kv = 7;
    p.with_lengths = true;
    expect_bit_identical(p, small(layout()));
}

TEST_P(UlyssesLayouts, ReplicatedTextFirst) {
    Problem p = problem(world(), {21});
    p.text_q = p.text_kv = 5;
    p.text_place = TextPlace::kFront;
    expect_bit_identical(p, small(layout()), true);
}

TEST_P(UlyssesLayouts, GroupedKeysAndOtherKeyRows) {
    Problem p = problem(world(), {13}, 8);
    p.heads_kv = 2;
    for (int r = 0; r < world(); ++r) p.rows_kv.push_back(9 + r);
    p.text_kv = 4;
    expect_bit_identical(p, small(layout()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, UlyssesLayouts,
                         ::testing::Combine(::testing::Values(Layout::kBatched, Layout::kPadded,
                                                              Layout::kPages, Layout::kSplit,
                                                              Layout::kScatter, Layout::kPeers),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                             return std::string(name_of(std::get<0>(info.param))) +
                                    std::to_string(std::get<1>(info.param));
                         });

TEST(UlyssesHost, EmptyRanksTakePartWithTheirHeads) {
    for (Layout layout :
         {Layout::kPadded, Layout::kPages, Layout::kSplit, Layout::kScatter, Layout::kPeers})
        expect_bit_identical(problem(4, {30, 0, 11, 0}), small(layout));
    expect_bit_identical(problem(3, {0, 0, 20}), small(Layout::kAuto));
}

TEST(UlyssesHost, KernelsThatReturnAPackedResult) {
    Options options = small(Layout::kAuto);
    options.plug = {[](const AttentionCall& call) {
                        // A kernel with its own output; only packed strides will do.
                        ASSERT_EQ(call.out.row_stride, std::int64_t{call.heads_q} * call.head_dim);
                        reference_attention(call);
                    },
                    "packed", false, 128};
    Problem p = problem(3, {23, 11, 22}, 7);
    p.batch = 2;
    p.text_q = p.text_kv = 6;
    expect_bit_identical(p, options);
}

TEST(UlyssesHost, EightRanksAndHeadsThatDoNotDivide) {
    expect_bit_identical(problem(8, {6, 5}, 30, 8), small(Layout::kAuto));
}

TEST(UlyssesHost, WithinTheDtypesBoundOfFloat64) {
    for (fabric::DType dtype : {fabric::DType::kBf16, fabric::DType::kF16}) {
        Problem p = problem(2, {33, 32}, 4, 32);
        p.dtype = dtype;
        Case c(p, 3);
        const std::vector<double> exact = suite::whole_f64(c);
        on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
            UlyssesAttention attention(group, p, small(Layout::kAuto));
            const Result r = attention.attend({suite::shard(device, c, rank)})[0];
            const std::int64_t first = suite::first_row(p.rows_q, rank);
            const auto bytes =
                suite::download(device, rank, r.samples[0], p.rows_q[rank], 4, 32, 2);
            // Half a unit in the last place of a result below 2, and the float sums' own error.
            const double bound = dtype == fabric::DType::kBf16 ? 0x1p-8 : 0x1p-11;
            for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
                double got = 0;
                with_storage(dtype, [&](auto type) {
                    decltype(type) x;
                    std::memcpy(&x, &bytes[i * 2], 2);
                    got = x.value();
                });
                const double want = exact[static_cast<std::size_t>(first) * 4 * 32 + i];
                SUITE_REQUIRE(std::abs(got - want) <= bound * std::max(1.0, std::abs(want)) + 1e-5);
            }
        });
    }
}

TEST(UlyssesHost, ResultGoesIntoAWiderRowOfTheCallers) {
    const Problem p = problem(2, {14, 9}, 4, 8);
    Case c(p);
    const Whole w = suite::whole(c, reference_attention);
    on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention attention(group, p, small(Layout::kAuto));
        // [rows, 4 * 8 + 24]: the attention's columns beside a block's own 24.
        const std::int64_t pitch = 4 * 8 + 24;
        std::vector<std::uint16_t> block(static_cast<std::size_t>(p.rows_q[rank] * pitch), 0xabcd);
        ShardedInput in = suite::shard(device, c, rank);
        in.to.out = {block.data(), p.rows_q[rank] * pitch, pitch, 8};
        const Result r = attention.attend({in})[0];
        SUITE_REQUIRE(r.out.data == block.data());
        SUITE_REQUIRE(suite::compare(device, c, w, r, rank).empty());
        for (std::int64_t row = 0; row < p.rows_q[rank]; ++row)
            for (std::int64_t e = 32; e < pitch; ++e)
                SUITE_REQUIRE(block[static_cast<std::size_t>(row * pitch + e)] == 0xabcd);
    });
}

TEST(UlyssesHost, WideReceiveRowsNeedNoCopy) {
    for (Layout layout : {Layout::kBatched, Layout::kPadded}) {
        Problem p = problem(2, {12}, 4, 8);
        p.out_pitch = 4 * 8 + 24;
        Case c(p);
        const Whole w = suite::whole(c, reference_attention);
        on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
            UlyssesAttention attention(group, p, small(layout));
            attention.use_buffer(1);
            const View mine = attention.out_memory(1, rank);
            auto* elements = static_cast<std::uint16_t*>(mine.data);
            for (std::int64_t row = 0; row < 12; ++row)
                for (int e = 32; e < 56; ++e) elements[row * mine.row_stride + e] = 0x1234;
            const Result r = attention.attend({suite::shard(device, c, rank)})[0];
            SUITE_REQUIRE(r.out.data == mine.data);
            SUITE_REQUIRE(suite::compare(device, c, w, r, rank).empty());
            for (std::int64_t row = 0; row < 12; ++row)
                for (int e = 32; e < 56; ++e)
                    SUITE_REQUIRE(elements[row * mine.row_stride + e] == 0x1234);
        });
    }
}

TEST(UlyssesHost, HeadScaleMultipliesOnceRounded) {
    const Problem p = problem(2, {8}, 2, 8);
    Case c(p);
    const Whole w = suite::whole(c, reference_attention);
    on_ranks(2, [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention attention(group, p, small(Layout::kAuto));
        std::vector<Bf16> gate;
        for (int i = 0; i < 8 * 2; ++i)
            gate.push_back(Bf16::from(0.37f * static_cast<float>(i + rank)));
        ShardedInput in = suite::shard(device, c, rank);
        in.to.head_scale = gate.data();
        in.to.head_scale_row = 2;
        const Result r = attention.attend({in})[0];
        const auto* got = static_cast<const Bf16*>(r.out.data);
        for (int row = 0; row < 8; ++row)
            for (int h = 0; h < 2; ++h)
                for (int e = 0; e < 8; ++e) {
                    const auto x = static_cast<float>(w.out.at(0, rank * 8 + row, h, e));
                    const float want =
                        Bf16::from(x * gate[static_cast<std::size_t>(row * 2 + h)].value()).value();
                    SUITE_REQUIRE(got[row * r.out.row_stride + h * 8 + e].value() == want);
                }
    });
}

TEST(UlyssesHost, BuffersInAnyTurnAndDeferredWaits) {
    const Problem p = problem(3, {9, 10, 8}, 4, 8);
    std::vector<Case> cases;
    std::vector<Whole> wholes;
    for (unsigned i = 0; i < 5; ++i) {
        cases.emplace_back(p, i + 10);
        wholes.push_back(suite::whole(cases.back(), reference_attention));
    }
    on_ranks(3, [&](Fabric& group, HostDevice& device, int rank) {
        UlyssesAttention attention(group, p, small(Layout::kAuto));
        // An odd number of calls, as a captured graph may hold: buffers follow in no regular turn.
        const int buffers[] = {0, 1, 0, 0, 1};
        for (int round = 0; round < 2; ++round)
            for (std::size_t i = 0; i < cases.size(); ++i) {
                attention.use_buffer(buffers[i]);
                attention.set_deferred(i % 2 == 1);
                auto results = attention.attend({suite::shard(device, cases[i], rank)});
                SUITE_REQUIRE(results.empty() == (i % 2 == 1));
                if (results.empty()) results = attention.finish();
                SUITE_REQUIRE(
                    suite::compare(device, cases[i], wholes[i], results[0], rank).empty());
            }
    });
}

}  // namespace
}  // namespace xstage::ulysses
