// Norms and rotations against the families' formulas, written out here operation by operation.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "ops/ulysses/mover.hpp"

namespace xstage::ulysses {
namespace {

float r32(double x) {
    return static_cast<float>(x);
}
float bf(float x) {
    return Bf16::from(x).value();
}

TEST(UlyssesStorage, Bf16RoundsToNearestEven) {
    EXPECT_EQ(Bf16::from(1.0f).bits, 0x3f80);
    EXPECT_EQ(Bf16::from(1.00390625f).bits, 0x3f80);  // 1 + 2^-8, a tie: to the even 1
    EXPECT_EQ(Bf16::from(1.01171875f).bits, 0x3f82);  // 1 + 3 * 2^-8, a tie: up to even
    EXPECT_EQ(Bf16::from(3.4e38f).bits, 0x7f80);      // past the largest
    EXPECT_TRUE(std::isnan(Bf16::from(std::nanf("")).value()));
}

TEST(UlyssesStorage, Fp16RoundsToNearestEvenDownToSubnormals) {
    EXPECT_EQ(Fp16::from(1.0f).bits, 0x3c00);
    EXPECT_EQ(Fp16::from(65504.0f).bits, 0x7bff);
    EXPECT_EQ(Fp16::from(65519.99f).bits, 0x7bff);
    EXPECT_EQ(Fp16::from(65520.0f).bits, 0x7c00);
    EXPECT_EQ(Fp16::from(0x1p-24f).bits, 0x0001);
    EXPECT_EQ(Fp16::from(0x1p-25f).bits, 0x0000);  // a tie: to even
    EXPECT_EQ(Fp16::from(-0x1.8p-24f).bits, 0x8002);
    EXPECT_EQ(Fp16::from(0x1p-14f).bits, 0x0400);
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const Fp16 x{static_cast<std::uint16_t>(bits)};
        ASSERT_EQ(Fp16::from(x.value()).bits, bits);
    }
}

/// One head through the host mover on a single rank.
std::vector<float> through(const std::vector<float>& x, const Norm& norm, const Rotary& rotary,
                           std::int64_t row = 0, int heads = 1, int head = 0) {
    std::vector<Bf16> in(x.size() * static_cast<std::size_t>(heads) *
                         static_cast<std::size_t>(row + 1));
    const std::size_t at = (static_cast<std::size_t>(row) * heads + head) * x.size();
    for (std::size_t e = 0; e < x.size(); ++e) in[at + e] = Bf16::from(x[e]);
    std::vector<Bf16> out(in.size());
    HeadScatter s;
    s.world = 1;
    s.head_dim = static_cast<int>(x.size());
    s.rows = row + 1;
    s.heads = heads;
    s.from = in.data();
    s.from_row = heads * s.head_dim;
    s.from_head = s.head_dim;
    s.head_count[0] = heads;
    s.to[0] = out.data();
    s.to_row[0] = s.from_row;
    s.map.world = 1;
    s.norm = norm;
    s.rotary = rotary;
    make_host_mover()->move(HeadExchange{{s}, 1}, 0, nullptr);
    std::vector<float> y;
    for (std::size_t e = 0; e < x.size(); ++e) y.push_back(out[at + e].value());
    return y;
}

struct Values {
    std::vector<float> x, cos, sin;
};
Values values(int dim, int table, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Values v;
    for (int e = 0; e < dim; ++e) v.x.push_back(bf(normal(random)));
    for (int e = 0; e < table; ++e) {
        const float angle = 3 * normal(random);
        v.cos.push_back(std::cos(angle));
        v.sin.push_back(std::sin(angle));
    }
    return v;
}

TEST(UlyssesRotary, FluxAddsTwoRoundedProducts) {
    const Values v = values(16, 16, 1);
    const auto y = through(v.x, {}, rotary::flux(v.cos.data(), v.sin.data(), 16));
    for (int i = 0; i < 16; i += 2) {
        // A double holds the product of two floats exactly, so r32 is its one rounding.
        const float a = r32(double{v.x[i]} * v.cos[i]), b = r32(-double{v.x[i + 1]} * v.sin[i]);
        EXPECT_EQ(y[i], bf(r32(double{a} + b)));
        const float c = r32(double{v.x[i + 1]} * v.cos[i + 1]),
                    d = r32(double{v.x[i]} * v.sin[i + 1]);
        EXPECT_EQ(y[i + 1], bf(r32(double{c} + d)));
    }
}

TEST(UlyssesRotary, WanTakesCosEvenAndSinOdd) {
    const Values v = values(16, 16, 2);
    const auto y = through(v.x, {}, rotary::wan(v.cos.data(), v.sin.data(), 16));
    for (int i = 0; i < 16; i += 2) {
        const float x1 = v.x[i], x2 = v.x[i + 1], c = v.cos[i], s = v.sin[i + 1];
        EXPECT_EQ(y[i], bf(r32(double{r32(double{x1} * c)} - r32(double{x2} * s))));
        EXPECT_EQ(y[i + 1], bf(r32(double{r32(double{x1} * s)} + r32(double{x2} * c))));
    }
}

TEST(UlyssesRotary, QwenMultipliesComplexPairs) {
    const Values v = values(16, 8, 3);
    std::vector<float> table;
    for (int i = 0; i < 8; ++i) table.insert(table.end(), {v.cos[i], v.sin[i]});
    const auto y = through(v.x, {}, rotary::qwen_image(table.data(), 16));
    for (int i = 0; i < 8; ++i) {
        const float a = v.x[2 * i], b = v.x[2 * i + 1], c = v.cos[i], d = v.sin[i];
        EXPECT_EQ(y[2 * i], bf(r32(double{r32(double{a} * c)} - r32(double{b} * d))));
        EXPECT_EQ(y[2 * i + 1], bf(r32(double{r32(double{a} * d)} + r32(double{b} * c))));
    }
}

TEST(UlyssesRotary, LtxSplitHasATablePerHead) {
    const int dim = 8, heads = 3, rows = 2;
    const Values v = values(dim, heads * rows * dim / 2, 4);
    const int head = 2, row = 1;
    const auto y =
        through(v.x, {}, rotary::ltx2_split(v.cos.data(), v.sin.data(), heads, dim, rows), row,
                heads, head);
    for (int i = 0; i < dim / 2; ++i) {
        const float c = v.cos[(head * rows + row) * dim / 2 + i],
                    s = v.sin[(head * rows + row) * dim / 2 + i];
        const float x1 = v.x[i], x2 = v.x[i + dim / 2];
        EXPECT_EQ(y[i], bf(r32(double{r32(double{x1} * c)} + r32(double{-s} * x2))));
        EXPECT_EQ(y[i + dim / 2], bf(r32(double{r32(double{x2} * c)} + r32(double{s} * x1))));
    }
}

TEST(UlyssesRotary, LtxInterleavedWalksItsWideTable) {
    const int dim = 8, heads = 2, rows = 3;
    const Values v = values(dim, heads * rows * dim, 5);
    const auto y =
        through(v.x, {}, rotary::ltx2_interleaved(v.cos.data(), v.sin.data(), heads, dim, rows), 2,
                heads, 1);
    const int at = 2 * heads * dim + dim;
    const float a = r32(double{v.x[0]} * v.cos[at]), b = r32(-double{v.x[1]} * v.sin[at]);
    EXPECT_EQ(y[0], bf(r32(double{a} + b)));
}

TEST(UlyssesRotary, MinimaxRoundsEveryOperationAndLeavesTheTail) {
    const Values v = values(128, 96, 6);
    const auto y = through(v.x, {}, rotary::minimax_h3(v.cos.data(), v.sin.data()));
    for (int e = 0; e < 96; ++e) {
        const float turned = e < 48 ? -v.x[e + 48] : v.x[e - 48];
        const float a = bf(v.x[e] * bf(v.cos[e])), b = bf(turned * bf(v.sin[e]));
        EXPECT_EQ(y[e], bf(a + b)) << e;
    }
    for (int e = 96; e < 128; ++e) EXPECT_EQ(y[e], v.x[e]);
}

TEST(UlyssesRotary, FusedDiffersFromSeparateSomewhere) {
    // Guards the switch itself: with a contraction the two would agree everywhere.
    int differ = 0;
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 20000; ++i) {
        const float a = normal(random), b = normal(random), c = normal(random), s = normal(random);
        differ += rotated<Fp32>(RotaryMath::kSeparate, true, a, b, c, s) !=
                  rotated<Fp32>(RotaryMath::kFused, true, a, b, c, s);
    }
    EXPECT_GT(differ, 100);
}

TEST(UlyssesNorm, PerHeadOnceAndTwiceRounded) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> x, w;
    for (int e = 0; e < 128; ++e) {
        x.push_back(bf(4 * normal(random)));
        w.push_back(bf(1 + 0.2f * normal(random)));
    }
    std::vector<Bf16> weight;
    for (float f : w) weight.push_back(Bf16::from(f));
    double squares = 0;
    for (float f : x) squares += double{f} * f;
    const double rstd = 1 / std::sqrt(squares / 128 + 1e-6);
    for (NormRounding rounding : {NormRounding::kOnce, NormRounding::kTwice}) {
        Norm norm{NormKind::kPerHead, rounding, false, weight.data(), 1e-6f};
        const auto y = through(x, norm, {});
        int off = 0;
        for (int e = 0; e < 128; ++e) {
            const double t = x[e] * rstd;
            const float want =
                rounding == NormRounding::kOnce ? bf(r32(t * w[e])) : bf(bf(r32(t)) * w[e]);
            // The float sum of squares may differ in its last bit, which rarely moves a bf16.
            off += y[e] != want;
            EXPECT_NEAR(y[e], want, std::abs(want) * 0x1p-7);
        }
        EXPECT_LE(off, 2);
    }
}

TEST(UlyssesNorm, FullWidthSeesAllHeads) {
    // Head 0 is all ones, head 1 all sevens: the mean of squares over both is 25.
    const int dim = 8;
    std::vector<Bf16> in(2 * dim);
    for (int e = 0; e < dim; ++e) {
        in[e] = Bf16::from(1);
        in[dim + e] = Bf16::from(7);
    }
    std::vector<float> weight(2 * dim, 1.0f);
    weight[dim] = 2;
    std::vector<Bf16> out(2 * dim);
    HeadScatter s;
    s.world = 1;
    s.head_dim = dim;
    s.rows = 1;
    s.heads = 2;
    s.from = in.data();
    s.from_head = dim;
    s.head_count[0] = 2;
    s.to[0] = out.data();
    s.map.world = 1;
    s.norm = {NormKind::kFullWidth, NormRounding::kOnce, true, weight.data(), 0};
    make_host_mover()->move(HeadExchange{{s}, 1}, 0, nullptr);
    EXPECT_EQ(out[0].value(), bf(0.2f));
    EXPECT_EQ(out[dim].value(), bf(2.8f));
    EXPECT_EQ(out[dim + 1].value(), bf(1.4f));
}

TEST(UlyssesSend, ViewsPastTheLimitsOf32Bits) {
    // Three rows of a fused projection, 1.5e9 elements apart: only the touched pages become memory.
    constexpr std::int64_t kStride = 1'500'000'000;
    const std::size_t bytes = std::size_t{2} * kStride * 3;
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    auto* in = static_cast<Bf16*>(base);
    for (std::int64_t row = 0; row < 3; ++row)
        for (int e = 0; e < 16; ++e)
            in[row * kStride + e] = Bf16::from(static_cast<float>(10 * row + e));
    std::vector<Bf16> out(3 * 16);
    HeadScatter s;
    s.world = 1;
    s.head_dim = 8;
    s.rows = 3;
    s.heads = 2;
    s.from = in;
    s.from_row = kStride;
    s.from_head = 8;
    s.head_count[0] = 2;
    s.to[0] = out.data();
    s.to_row[0] = 16;
    s.map.world = 1;
    make_host_mover()->move(HeadExchange{{s}, 1}, 0, nullptr);
    for (int row = 0; row < 3; ++row)
        for (int e = 0; e < 16; ++e) EXPECT_EQ(out[row * 16 + e].value(), 10.0f * row + e);
    ::munmap(base, bytes);
}

}  // namespace
}  // namespace xstage::ulysses
