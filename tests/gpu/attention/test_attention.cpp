#include "problem.hpp"
#include "xstage/error.hpp"

namespace xstage::test {
namespace {

using testing::Each;

class Attention : public testing::Test {
  protected:
    void SetUp() override {
        if (!have_hopper()) GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
};

class EveryInstance : public Attention, public testing::WithParamInterface<std::string> {};

TEST_P(EveryInstance, AgreesAtEveryTailLength) {
    for (const std::int64_t rows : {1, 63, 64, 65, 127, 129, 257}) {
        SCOPED_TRACE(rows);
        Shape s = shape_of_instance(GetParam());
        s.heads = s.kv_heads = 2;
        s.q_rows = s.kv_rows = rows;
        expect_agrees(s);
    }
}

TEST_P(EveryInstance, AgreesWithGroupedHeadsBatchesAndUnequalLengths) {
    Shape s = shape_of_instance(GetParam());
    s.batches = 2;
    s.heads = 6;
    s.kv_heads = 2;
    s.q_rows = 300;
    s.kv_rows = 701;
    expect_agrees(s);
    s.q_rows = 701;
    s.kv_rows = 300;
    expect_agrees(s);
}

TEST_P(EveryInstance, KeysBehindASamplesEndDoNotCountWhateverTheyHold) {
    Shape s = shape_of_instance(GetParam());
    s.batches = 4;
    s.q_rows = 200;
    s.kv_rows = 500;
    s.key_lengths = {0, 1, 333, 500};
    expect_agrees(s);
}

// Of three rows one has scores below zero only, one above only, and one first (keys are taken from
// the last on) below and then above. They span more than 2^127, so that a reference which misses
// the largest gives infinity.
TEST_P(EveryInstance, AgreesWhereAllScoresSoFarAreBelowZero) {
    Shape s = shape_of_instance(GetParam());
    s.q_rows = 200;
    s.kv_rows = 700;
    s.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
        if (tensor == 2) return std::sin(static_cast<float>(row * 13 + column));
        if (tensor == 0) return column == row % 3 ? 8.0F : 0.0F;
        const auto size = static_cast<float>(1 + row * 37 % 251);
        if (column == 0) return -size;
        if (column == 1) return size;
        return column == 2 ? row < 300 ? size : -size : 0.0F;
    };
    expect_agrees(s);
}

TEST_P(EveryInstance, ManyTilesPerCtaGiveTheSameBitsFiftyTimes) {
    Shape s = shape_of_instance(GetParam());
    s.heads = s.kv_heads = 12;
    s.q_rows = 4429;
    s.kv_rows = 700;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> first = problem.out_bits();
    EXPECT_LT(relative_error(problem.out(), problem.reference().out), tolerance(s.type));
    for (int i = 1; i < 50; ++i) {
        problem.run(problem.arguments());
        ASSERT_EQ(problem.out_bits(), first) << "run " << i;
    }
}

TEST_P(EveryInstance, ChunksForPeersHoldTheSameBitsAsOneOutput) {
    Shape s = shape_of_instance(GetParam());
    s.batches = 2;
    s.heads = s.kv_heads = 3;
    s.q_rows = 1000;
    s.kv_rows = 200;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> whole = problem.out_bits();

    const std::vector<std::int64_t> lengths = {123, 1, 320, 0, 63, 493};  // none a whole tile
    for (const plan::TileOrder order : {plan::TileOrder::kHeadMajor, plan::TileOrder::kInterleaved,
                                        plan::TileOrder::kRotated, plan::TileOrder::kRemoteFirst}) {
        AttentionArguments a = problem.arguments();
        a.order = order;
        a.rank = 2;
        const AttentionView base = a.out[0].view;
        a.out.clear();
        std::int64_t row = 0;
        for (const std::int64_t rows : lengths) {
            AttentionView view = base;
            view.data = static_cast<std::uint16_t*>(base.data) + row * base.stride_row;
            a.out.push_back({view, rows});
            row += rows;
        }
        problem.run(a);
        EXPECT_EQ(problem.out_bits(), whole) << "order " << static_cast<int>(order);
        EXPECT_TRUE(problem.guards_intact());
    }
}

INSTANTIATE_TEST_SUITE_P(Compiled, EveryInstance, testing::ValuesIn(attention_instances()),
                         [](const auto& info) { return info.param; });

TEST_F(Attention, AgreesOnLongOddSequences) {
    for (const std::int64_t rows : {4429, 7145}) {
        for (const bool causal : {false, true}) {
            SCOPED_TRACE(rows);
            Shape s;
            s.heads = s.kv_heads = 2;
            s.q_rows = s.kv_rows = rows;
            s.causal = causal;
            expect_agrees(s);
        }
    }
}

TEST_F(Attention, LargeScoresKeepTheirPrecision) {
    for (const AttentionType type : {AttentionType::kBf16, AttentionType::kFp16}) {
        Shape s;
        s.type = type;
        s.q_rows = s.kv_rows = 600;
        s.deviation = 40;
        const Problem problem(s);
        problem.run(problem.arguments());
        EXPECT_LT(relative_error(problem.out(), problem.reference().out), tolerance(type));
    }
}

// One key against ten that weigh about as much together and come first. Its probability is 1 if O
// follows the maximum and else a number that 16 bits must round; the values cancel, so the rounding
// shows in the result.
TEST_F(Attention, TheLargestProbabilityIsExactUnlessAskedOtherwise) {
    int rounded = 0;
    for (int i = 0; i < 16; ++i) {
        const float excess =
            2.875F + static_cast<float>(i) / 16;  // in powers of two; a bf16 number
        Shape s;
        s.q_rows = 64;
        s.kv_rows = 600;
        s.fill = [&](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
            if (tensor == 2) return row == 0 ? 1.0F : -1.0F;
            if (column != 0) return 0.0F;
            if (tensor == 0) return 1.0F;
            if (row == 0) return excess;
            return row >= 590 ? 0.0F : -100.0F;
        };
        const Problem problem(s);
        AttentionArguments a = problem.arguments();
        a.scale = 0.69314718F;  // one unit of score is one power of two
        const double weight = std::exp2(excess);
        const double expected = (weight - 10) / (weight + 10);
        const double one_rounding = std::exp2(-8.0) * std::abs(expected) + 1e-6;
        for (const float above : {0.0F, 8.0F}) {
            a.rescale_above = above;
            problem.run(a);
            const double off = std::abs(problem.out().at(0) - expected);
            if (above == 0) {
                EXPECT_LE(off, one_rounding) << "2^" << excess;
            } else {
                EXPECT_LE(off, one_rounding + std::exp2(-9.0)) << "2^" << excess;
                rounded += off > one_rounding ? 1 : 0;
            }
        }
    }
    EXPECT_GT(rounded, 0) << "the other way makes no difference";
}

TEST_F(Attention, EqualScoresAverageTheValues) {
    Shape s;
    s.q_rows = 100;
    s.kv_rows = 257;
    s.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
        if (tensor < 2) return 0.5F;
        return static_cast<float>((row + column) % 2);  // 129 or 128 ones among 257 keys
    };
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<float> out = problem.out();
    for (std::size_t i = 0; i < out.size(); ++i) {
        const double ones = i % 2 == 0 ? 128 : 129;
        ASSERT_NEAR(out[i], ones / 257, std::ldexp(1.0, -9)) << i;  // half a unit above 1/2
    }
    // Score 0.5*0.5*128/sqrt(128) = 2.828427 for each of 257 keys.
    EXPECT_THAT(problem.lse(), Each(testing::FloatNear(2.828427F + std::log(257.0F), 1e-5F)));
}

// Also where scores are so large, here near 10^4 powers of two, that their product with the scale
// is rounded by parts of a thousand.
TEST_F(Attention, OneDominantKeyIsCopiedExactly) {
    for (const AttentionType type : {AttentionType::kBf16, AttentionType::kFp16}) {
        Shape s;
        s.type = type;
        s.q_rows = 130;
        s.kv_rows = 400;
        s.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
            if (tensor == 0) return column == 0 ? 300.0F + 0.25F * static_cast<float>(row) : 0.0F;
            if (tensor == 1) return column == 0 && row == 271 ? 250.0F : 0.0F;
            return row == 271 ? static_cast<float>(column) : 1000.0F;
        };
        const Problem problem(s);
        problem.run(problem.arguments());
        const std::vector<float> out = problem.out();
        for (std::size_t i = 0; i < out.size(); ++i) {
            ASSERT_EQ(out[i], static_cast<float>(i % 128)) << "row " << i / 128;
        }
    }
}

TEST_F(Attention, RowsWithoutAKeyGiveZeroAndMinusInfinity) {
    Shape s;
    s.q_rows = 300;
    s.kv_rows = 100;
    s.causal = true;  // the first 200 rows see nothing
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<float> out = problem.out();
    const std::vector<float> lse = problem.lse();
    for (std::size_t row = 0; row < 300; ++row) {
        if (row < 200) {
            ASSERT_EQ(lse[row], -std::numeric_limits<float>::infinity());
            for (std::size_t c = 0; c < 128; ++c) ASSERT_EQ(out[row * 128 + c], 0.0F);
        } else {
            ASSERT_TRUE(std::isfinite(lse[row]));
        }
    }
}

TEST_F(Attention, NoKeysAtAllGiveZero) {
    Shape s;
    s.kv_rows = 0;
    const Problem problem(s);
    problem.run(problem.arguments());
    EXPECT_THAT(problem.out(), Each(0.0F));
    EXPECT_THAT(problem.lse(), Each(-std::numeric_limits<float>::infinity()));
}

TEST_F(Attention, NanStaysInItsRow) {
    Shape clean;
    clean.q_rows = clean.kv_rows = 333;
    clean.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
        return std::sin(static_cast<float>(tensor * 7 + row * 13 + column));
    };
    Shape dirty = clean;
    dirty.fill = [&](int tensor, std::int64_t b, std::int64_t row, std::int64_t h, int column) {
        if (tensor == 0 && row == 70 && column == 3) {
            return std::numeric_limits<float>::quiet_NaN();
        }
        return clean.fill(tensor, b, row, h, column);
    };
    const Problem a(clean);
    const Problem b(dirty);
    a.run(a.arguments());
    b.run(b.arguments());
    const std::vector<float> want = a.out();
    const std::vector<float> got = b.out();
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (i / 128 == 70) {
            ASSERT_TRUE(std::isnan(got[i]));
        } else {
            ASSERT_EQ(got[i], want[i]);
        }
    }
}

TEST_F(Attention, ViewsIntoOneFusedTensorWork) {
    constexpr std::int64_t kRows = 190;
    constexpr std::int64_t kHeads = 3;
    Shape s;
    s.heads = s.kv_heads = kHeads;
    s.q_rows = s.kv_rows = kRows;
    const Problem packed(s);
    packed.run(packed.arguments());

    // [row][q k v][head][128]
    const AttentionArguments from = packed.arguments();
    const GuardedBuffer fused(kRows * 3 * kHeads * 128 * 2);
    constexpr std::size_t kRowBytes = kHeads * 128 * 2;
    int part = 0;
    for (const AttentionView& view : {from.q, from.k, from.v}) {
        require_cuda(cudaMemcpy2D(static_cast<char*>(fused.data()) + part++ * kRowBytes,
                                  3 * kRowBytes, view.data, kRowBytes, kRowBytes, kRows,
                                  cudaMemcpyDeviceToDevice));
    }
    const std::vector<std::uint16_t> want = packed.out_bits();
    AttentionArguments a = from;
    auto* base = static_cast<std::uint16_t*>(fused.data());
    a.q = {base, kRows * 9 * 128, 9 * 128, 128};
    a.k = {base + kHeads * 128, kRows * 9 * 128, 9 * 128, 128};
    a.v = {base + 2 * kHeads * 128, kRows * 9 * 128, 9 * 128, 128};
    packed.run(a);
    EXPECT_EQ(packed.out_bits(), want);
}

TEST_F(Attention, BatchesMayShareKeys) {
    Shape s;
    s.batches = 3;
    s.q_rows = 100;
    s.kv_rows = 150;
    s.fill = [](int tensor, std::int64_t b, std::int64_t row, std::int64_t, int column) {
        return std::cos(static_cast<float>((tensor == 0 ? b * 5 : 0) + row * 3 + column * tensor));
    };
    const Problem problem(s);  // every batch has the same keys
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> want = problem.out_bits();
    AttentionArguments a = problem.arguments();
    a.k.stride_batch = a.v.stride_batch = 0;
    problem.run(a);
    EXPECT_EQ(problem.out_bits(), want);
}

TEST_F(Attention, OffsetsBeyond32BitsAreReached) {
    constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 128;  // elements between the batches
    std::size_t free = 0;
    std::size_t total = 0;
    require_cuda(cudaMemGetInfo(&free, &total));
    if (free < (std::size_t{10} << 30)) GTEST_SKIP() << "needs 10 GiB of free GPU memory";
    Shape s;
    s.batches = 2;
    s.q_rows = s.kv_rows = 140;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> want = problem.out_bits();

    const std::size_t packed = 140 * 128 * 2;
    const GuardedBuffer far_q(kFar * 2 + packed);
    const GuardedBuffer far_out(kFar * 2 + packed);
    AttentionArguments a = problem.arguments();
    require_cuda(cudaMemcpy2D(far_q.data(), kFar * 2, a.q.data, packed, packed, 2,
                              cudaMemcpyDeviceToDevice));
    a.q.data = far_q.data();
    a.out[0].view.data = far_out.data();
    a.q.stride_batch = a.out[0].view.stride_batch = kFar;
    AttentionPlan(a).launch(nullptr);
    std::vector<std::uint16_t> got(want.size());
    require_cuda(cudaMemcpy2D(got.data(), packed, far_out.data(), kFar * 2, packed, 2,
                              cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, want);
}

TEST_F(Attention, ALaunchCanBeCapturedAndReplayed) {
    Shape s;
    s.q_rows = s.kv_rows = 300;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> want = problem.out_bits();
    const AttentionPlan plan(problem.arguments());
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require_cuda(cudaStreamCreate(&stream));
    require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    plan.launch(stream);
    require_cuda(cudaStreamEndCapture(stream, &graph));
    require_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; ++i) {
        problem.out_buffer().poison();
        require_cuda(cudaDeviceSynchronize());
        require_cuda(cudaGraphLaunch(executable, stream));
        require_cuda(cudaStreamSynchronize(stream));
        EXPECT_EQ(problem.out_bits(), want);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace xstage::test
