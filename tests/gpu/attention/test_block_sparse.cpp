#include <algorithm>

#include "problem.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::test {
namespace {

using sparse::BlockMask;

BlockMask random_mask(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                      std::int64_t kv_rows, double density, unsigned seed = 1) {
    BlockMask mask(batches, heads, q_rows, kv_rows);
    std::mt19937 random(seed);
    std::bernoulli_distribution keep(density);
    for (std::int64_t b = 0; b < batches; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t u = 0; u < mask.q_blocks(); ++u) {
                for (std::int64_t v = 0; v < mask.key_blocks(); ++v) {
                    if (keep(random)) mask.set(b, h, u, v);
                }
            }
        }
    }
    return mask;
}

BlockMask banded_mask(std::int64_t heads, std::int64_t rows, std::int64_t width) {
    BlockMask mask(1, heads, rows, rows);
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t u = 0; u < mask.q_blocks(); ++u) {
            const std::int64_t end = std::min(mask.key_blocks(), u + width + 1);
            for (std::int64_t v = std::max<std::int64_t>(0, u - width); v < end; ++v) {
                mask.set(0, h, u, v);
            }
        }
    }
    return mask;
}

class BlockSparse : public testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (!have_hopper()) GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
    static Shape shape(std::int64_t heads, std::int64_t rows) {
        Shape s = shape_of_instance(GetParam());
        s.heads = s.kv_heads = heads;
        s.q_rows = s.kv_rows = rows;
        return s;
    }
};

TEST_P(BlockSparse, AgreesAtEveryTailLength) {
    for (const std::int64_t rows : {1, 6, 63, 129, 257, 384, 512, 777}) {
        for (const double density : {0.3, 0.8, 1.0}) {
            SCOPED_TRACE(testing::Message() << rows << " rows, density " << density);
            Shape s = shape(2, rows);
            const BlockMask mask = random_mask(1, 2, rows, rows, density);
            s.mask = &mask;
            expect_agrees(s);
        }
    }
}

TEST_P(BlockSparse, AgreesForBandsDiagonalsAndLongSequences) {
    for (const std::int64_t rows : {4429, 7145}) {
        for (const std::int64_t width : {0, 3, 14}) {
            SCOPED_TRACE(testing::Message() << rows << " rows, band " << width);
            Shape s = shape(1, rows);
            const BlockMask mask = banded_mask(1, rows, width);
            s.mask = &mask;
            expect_agrees(s);
        }
    }
}

TEST_P(BlockSparse, AFullMaskHasTheBitsOfTheDenseKernelWithTheSameTile) {
    for (const std::int64_t rows : {129, 257, 1000, 4429}) {
        SCOPED_TRACE(rows);
        Shape s = shape(3, rows);
        s.instance.erase(s.instance.find("blocks_"), 7);
        const Problem problem(s);
        problem.run(problem.arguments());
        const std::vector<std::uint16_t> dense = problem.out_bits();
        const std::vector<float> dense_lse = problem.lse();
        const BlockMask mask(1, 1, rows, rows, true);
        AttentionArguments a = problem.arguments();
        a.instance = GetParam();
        a.mask = &mask;
        problem.run(a);
        EXPECT_EQ(problem.out_bits(), dense);
        EXPECT_EQ(problem.lse(), dense_lse);
    }
}

TEST_P(BlockSparse, EmptyRowsGiveZeroAndMinusInfinity) {
    Shape s = shape(2, 1200);
    BlockMask mask(1, 2, 1200, 1200);
    for (const std::int64_t v : {0, 4, 9}) mask.set(0, 0, 4, v);  // all other rows are empty
    s.mask = &mask;
    expect_agrees(s);
    const BlockMask nothing(1, 1, 1200, 1200);
    s.mask = &nothing;
    const Problem problem(s);
    problem.run(problem.arguments());
    EXPECT_THAT(problem.out(), testing::Each(0.0F));
    EXPECT_THAT(problem.lse(), testing::Each(-std::numeric_limits<float>::infinity()));
}

TEST_P(BlockSparse, MasksOfBatchesKeyHeadsAndHeadsAreTheirOwn) {
    for (const std::int64_t mask_heads : {1, 2, 8}) {
        for (const std::int64_t mask_batches : {1, 2}) {
            Shape s = shape(8, 900);
            s.kv_heads = 2;
            s.batches = 2;
            s.kv_rows = 1300;
            const BlockMask mask = random_mask(mask_batches, mask_heads, 900, 1300, 0.4);
            s.mask = &mask;
            expect_agrees(s);
        }
    }
}

TEST_P(BlockSparse, BlocksThatAreNotKeptAreNeverUsedWhateverTheyHold) {
    constexpr std::int64_t kRows = 1100;
    constexpr std::int64_t kPoisoned = 5;  // key block that only query block 3 attends to
    BlockMask mask = random_mask(1, 1, kRows, kRows, 0.6);
    for (std::int64_t u = 0; u < mask.q_blocks(); ++u) mask.set(0, 0, u, kPoisoned, u == 3);
    Shape clean = shape(1, kRows);
    clean.mask = &mask;
    clean.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
        return std::sin(static_cast<float>(tensor * 7 + row * 13 + column));
    };
    Shape dirty = clean;
    dirty.fill = [&](int tensor, std::int64_t b, std::int64_t row, std::int64_t h, int column) {
        if (tensor > 0 && row / 128 == kPoisoned) return std::numeric_limits<float>::quiet_NaN();
        return clean.fill(tensor, b, row, h, column);
    };
    const Problem a(clean);
    const Problem b(dirty);
    a.run(a.arguments());
    b.run(b.arguments());
    const std::vector<float> want = a.out();
    const std::vector<float> got = b.out();
    const auto width = static_cast<std::size_t>(clean.head_dim);
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (i / width / 128 == 3) {
            ASSERT_TRUE(std::isnan(got[i]));
        } else {
            ASSERT_EQ(got[i], want[i]) << "row " << i / width;
        }
    }
}

TEST_P(BlockSparse, ManyTilesPerCtaGiveTheSameBitsAgainAndAgain) {
    Shape s = shape(12, 4429);
    BlockMask mask = random_mask(1, 12, 4429, 4429, 0.35);
    for (std::int64_t u = 0; u < 9; ++u) {  // rows of very unequal length, among them empty ones
        for (std::int64_t v = 0; v < mask.key_blocks(); ++v) mask.set(0, 2, u, v, u % 2 == 0);
    }
    s.mask = &mask;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> first = problem.out_bits();
    EXPECT_LT(relative_error(problem.out(), problem.reference().out), tolerance(s.type));
    for (int i = 1; i < 30; ++i) {
        problem.run(problem.arguments());
        ASSERT_EQ(problem.out_bits(), first) << "run " << i;
    }
}

TEST_P(BlockSparse, LongRowsFollowShortAndEmptyOnes) {
    constexpr std::int64_t kRows = 20011;
    Shape s = shape(2, kRows);
    BlockMask mask = random_mask(1, 2, kRows, kRows, 0.1);
    for (std::int64_t u = 0; u < mask.q_blocks(); ++u) {
        for (std::int64_t v = 0; v < mask.key_blocks(); ++v) {
            if (u % 3 == 1) mask.set(0, 0, u, v, v % 7 != 2);
            if (u % 5 == 1) mask.set(0, 1, u, v, u % 2 == 0);
        }
    }
    s.mask = &mask;
    const Problem problem(s);
    const Problem::Reference want = problem.reference();
    for (int i = 0; i < 5; ++i) {
        problem.run(problem.arguments());
        ASSERT_LT(relative_error(problem.out(), want.out), tolerance(s.type)) << "run " << i;
    }
}

TEST_P(BlockSparse, ChunksForPeersHoldTheSameBitsAsOneOutput) {
    Shape s = shape(3, 1000);
    const BlockMask mask = random_mask(1, 3, 1000, 1000, 0.5);
    s.mask = &mask;
    const Problem problem(s);
    problem.run(problem.arguments());
    const std::vector<std::uint16_t> whole = problem.out_bits();
    AttentionArguments a = problem.arguments();
    a.rank = 2;
    const AttentionView base = a.out[0].view;
    a.out.clear();
    std::int64_t row = 0;
    for (const std::int64_t rows : {123, 1, 320, 0, 63, 493}) {
        AttentionView view = base;
        view.data = static_cast<std::uint16_t*>(base.data) + row * base.stride_row;
        a.out.push_back({view, rows});
        row += rows;
    }
    problem.run(a);
    EXPECT_EQ(problem.out_bits(), whole);
    EXPECT_TRUE(problem.guards_intact());
}

INSTANTIATE_TEST_SUITE_P(Compiled, BlockSparse, testing::ValuesIn(block_sparse_instances()),
                         [](const auto& info) { return info.param; });

TEST(BlockSparseCall, OneKeptBlockIsNotTheDenseResult) {
    if (!have_hopper()) GTEST_SKIP() << "no GPU of compute capability 9.0";
    Shape s;
    s.head_dim = 64;
    s.heads = s.kv_heads = 2;
    s.q_rows = s.kv_rows = 512;
    BlockMask mask(1, 1, 512, 512);
    for (std::int64_t u = 0; u < 4; ++u) mask.set(0, 0, u, 0);
    const Problem dense(s);
    dense.run(dense.arguments());
    AttentionArguments a = dense.arguments();
    const std::vector<float> without = dense.out();
    a.mask = &mask;
    dense.run(a);
    double difference = 0;
    const std::vector<float> with = dense.out();
    for (std::size_t i = 0; i < with.size(); ++i) {
        difference = std::max(difference, std::abs(double{with[i]} - without[i]));
    }
    EXPECT_GT(difference, 0.1);
}

// Elements beyond 2^31 of a tensor: the last head of 56 must have the bits it has alone.
TEST(BlockSparseCall, TheLastHeadOfAVeryLongSequenceIsRight) {
    if (!have_hopper()) GTEST_SKIP() << "no GPU of compute capability 9.0";
    std::size_t free = 0;
    std::size_t total = 0;
    require_cuda(cudaMemGetInfo(&free, &total));
    if (free < (std::size_t{24} << 30)) GTEST_SKIP() << "needs 24 GiB of free GPU memory";
    constexpr std::int64_t kRows = 300000;
    constexpr std::int64_t kHeads = 56;
    Shape s;
    s.q_rows = s.kv_rows = kRows;
    s.fill = [](int tensor, std::int64_t, std::int64_t row, std::int64_t, int column) {
        std::uint32_t x =
            static_cast<std::uint32_t>(row * 128 + column) * 3 + static_cast<std::uint32_t>(tensor);
        x = (x ^ x >> 16) * 0x45d9f3bU;
        return static_cast<float>(static_cast<std::int32_t>((x ^ x >> 16) * 0x45d9f3bU)) * 1e-9F;
    };
    const BlockMask mask = banded_mask(1, kRows, 1);
    s.mask = &mask;
    const Problem alone(s);
    alone.run(alone.arguments());
    const std::vector<std::uint16_t> want = alone.out_bits();

    AttentionArguments a = alone.arguments();
    constexpr std::size_t kHeadBytes = 256;
    constexpr std::size_t kBytes = kRows * kHeads * kHeadBytes;
    std::vector<void*> tensors;
    for (AttentionView* view : {&a.q, &a.k, &a.v, &a.out[0].view}) {
        void* all = nullptr;
        require_cuda(cudaMalloc(&all, kBytes));
        require_cuda(cudaMemset(all, 0, kBytes));
        char* last = static_cast<char*>(all) + (kHeads - 1) * kHeadBytes;
        if (view != &a.out[0].view) {
            require_cuda(cudaMemcpy2D(last, kHeads * kHeadBytes, view->data, kHeadBytes, kHeadBytes,
                                      kRows, cudaMemcpyDeviceToDevice));
        }
        *view = {all, kRows * kHeads * 128, kHeads * 128, 128};
        tensors.push_back(all);
    }
    a.heads = a.kv_heads = kHeads;
    a.lse = nullptr;
    AttentionPlan(a).launch(nullptr);
    std::vector<std::uint16_t> got(want.size());
    require_cuda(cudaMemcpy2D(got.data(), kHeadBytes,
                              static_cast<char*>(tensors[3]) + (kHeads - 1) * kHeadBytes,
                              kHeads * kHeadBytes, kHeadBytes, kRows, cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, want);
    for (void* tensor : tensors) cudaFree(tensor);
}

}  // namespace
}  // namespace xstage::test
