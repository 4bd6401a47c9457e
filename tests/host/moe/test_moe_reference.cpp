#include <gtest/gtest.h>

#include "moe_case.hpp"

namespace xstage::moe {
namespace {

TEST(MoeReference, RoundsToBf16) {
    EXPECT_EQ(to_bf16(1.0F), 0x3f80);
    EXPECT_EQ(to_bf16(1.0F + 1.0F / 256), 0x3f80);  // a tie, to even
    EXPECT_EQ(to_bf16(1.0F + 3.0F / 256), 0x3f82);
    EXPECT_EQ(to_bf16(-3.0F), 0xc040);
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::nanf("")))));
    EXPECT_EQ(from_bf16(0x4049), 3.140625F);
}

TEST(MoeReference, RoundsToE4m3) {
    // Codes of the format's definition (OCP 8-bit floating point, E4M3).
    EXPECT_EQ(to_e4m3(1.0F), 0x38);
    EXPECT_EQ(to_e4m3(448.0F), 0x7e);
    EXPECT_EQ(to_e4m3(1e9F), 0x7e);
    EXPECT_EQ(to_e4m3(-0.5F), 0xb0);
    EXPECT_EQ(to_e4m3(1.0625F), 0x38);        // a tie between 1 and 1.125, to even
    EXPECT_EQ(to_e4m3(1.1875F), 0x3a);        // between 1.125 and 1.25
    EXPECT_EQ(to_e4m3(1.99F), 0x40);          // carries into the exponent
    EXPECT_EQ(to_e4m3(0.001953125F), 0x01);   // the smallest, 2^-9
    EXPECT_EQ(to_e4m3(0.0009765625F), 0x00);  // half of it, to even
    EXPECT_EQ(to_e4m3(0.0029296875F), 0x02);  // one and a half of it
    EXPECT_EQ(to_e4m3(0.015625F), 0x08);      // the smallest normal, 2^-6
    EXPECT_EQ(to_e4m3(std::nanf("")) & 0x7f, 0x7f);
    for (int code = 0; code < 256; ++code) {
        if ((code & 0x7f) == 0x7f) continue;
        EXPECT_EQ(to_e4m3(from_e4m3(static_cast<std::uint8_t>(code))), code);
    }
}

TEST(MoeReference, ScaleIsTheLeastPowerOfTwo) {
    EXPECT_EQ(scale_of(448), 1);
    EXPECT_EQ(scale_of(449), 2);
    EXPECT_EQ(scale_of(224), 0.5F);
    EXPECT_EQ(scale_of(225), 1);
    EXPECT_EQ(scale_of(1), std::ldexp(1.0F, -8));
    EXPECT_GT(scale_of(0), 0);
    EXPECT_EQ(scale_of(0), std::ldexp(1.0F, -126));
}

/// One expert whose matrices pick single elements: the result is known by hand.
TEST(MoeReference, OneTokenByHand) {
    Problem p;
    p.max_tokens = 1;
    p.hidden = 256;
    p.intermediate = 128;
    p.experts = 1;
    p.top_k = 2;
    suite::Case c(p, {1}, 1);
    suite::RankData& d = c.ranks[0];
    const auto put = [](std::vector<std::byte>& to, std::size_t i, float v) {
        const std::uint16_t bits = to_bf16(v);
        to[2 * i] = static_cast<std::byte>(bits & 0xff);
        to[2 * i + 1] = static_cast<std::byte>(bits >> 8);
    };
    for (auto* all : {&d.w1, &d.w2, &d.x}) std::fill(all->begin(), all->end(), std::byte{0});
    put(d.x, 3, 2.0F);
    put(d.x, 9, 3.0F);
    put(d.w1, 5 * 256 + 3, 1.0F);          // gate 5 takes x[3]
    put(d.w1, (128 + 5) * 256 + 9, 0.5F);  // up 5 takes half of x[9]
    put(d.w2, 200 * 128 + 5, 4.0F);        // output 200 takes activation 5
    d.experts = {0, 0};
    d.weights = {0.25F, 0.5F};
    const double silu = 2 / (1 + std::exp(-2.0));
    const auto exact = c.reference(Rounding::kNone);
    EXPECT_NEAR(exact[0][200], silu * 1.5 * 4 * 0.75, 1e-12);
    EXPECT_EQ(exact[0][199], 0);
    // Each slot's activation and row are rounded to bf16 by themselves.
    const auto rounded = [](double v) { return from_bf16(to_bf16(static_cast<float>(v))); };
    const float slots = 4 * rounded(silu * 1.5 * 0.25) + 4 * rounded(silu * 1.5 * 0.5);
    EXPECT_EQ(c.reference(Rounding::kKernel)[0][200], rounded(slots));
}

// The same expert once as the shared one and once as one that every token is routed to with weight
// 1 is the same sum, only that the shared one's slot comes last.
TEST(MoeReference, SharedExpertIsARouteOfEveryTokenWithWeightOne) {
    Problem shared;
    shared.max_tokens = 6;
    shared.hidden = 256;
    shared.intermediate = 128;
    shared.experts = 2;
    shared.top_k = 1;
    shared.shared = true;
    const suite::Case c(shared, {6}, 4);
    suite::Case routed = c;
    routed.problem.shared = false;
    routed.problem.experts = 3;  // the shared one is the first of the weights
    routed.problem.top_k = 2;
    suite::RankData& d = routed.ranks[0];
    d.experts.clear();
    d.weights.clear();
    for (std::size_t t = 0; t < 6; ++t) {
        d.experts.insert(d.experts.end(), {c.ranks[0].experts[t] + 1, 0});
        d.weights.insert(d.weights.end(), {c.ranks[0].weights[t], 1.0F});
    }
    EXPECT_EQ(c.reference(Rounding::kKernel), routed.reference(Rounding::kKernel));
    EXPECT_EQ(c.reference(Rounding::kNone), routed.reference(Rounding::kNone));
}

TEST(MoeReference, RoundingsStayNearTheExactLayer) {
    for (const Type type : {Type::kBf16, Type::kFp8}) {
        Problem p;
        p.ranks = 2;
        p.max_tokens = 20;
        p.hidden = 512;
        p.intermediate = 256;
        p.experts = 4;
        p.top_k = 2;
        p.type = type;
        const suite::Case c(p, {20, 3}, 2);
        const double d =
            suite::distance(c.reference(Rounding::kKernel), c.reference(Rounding::kNone));
        EXPECT_LT(d, type == Type::kFp8 ? 5e-2 : 4e-3);
        EXPECT_GT(d, type == Type::kFp8 ? 5e-3 : 5e-4);
    }
}

}  // namespace
}  // namespace xstage::moe
