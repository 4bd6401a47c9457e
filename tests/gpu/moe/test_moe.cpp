// The kernel against the layer in plain C++, on virtual ranks of one GPU.

#include <gtest/gtest.h>

#include "gpu_layer.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using suite::Case;
using suite::GpuLayer;

Problem problem_of(Type type, int ranks, int max_tokens) {
    Problem p;
    p.ranks = ranks;
    p.max_tokens = max_tokens;
    p.hidden = 512;
    p.intermediate = 256;
    p.experts = 8;
    p.top_k = 2;
    p.type = type;
    return p;
}

/// FP8: where two codes are equally near, float and float64 sums may take different ones.
double tolerance(Type type) {
    return type == Type::kFp8 ? 3e-3 : 1e-3;
}

class MegaMoeOnGpu : public testing::TestWithParam<Type> {
  protected:
    void SetUp() override {
        if (const std::string missing = suite::missing_gpu(); !missing.empty())
            GTEST_SKIP() << missing;
    }
};
INSTANTIATE_TEST_SUITE_P(Types, MegaMoeOnGpu, testing::Values(Type::kBf16, Type::kFp8),
                         [](const auto& info) {
                             return info.param == Type::kFp8 ? "fp8" : "bf16";
                         });

/// Share of elements that are more than one bf16 step from the oracle.
double beyond_one_step(const std::vector<std::vector<double>>& a,
                       const std::vector<std::vector<double>>& b) {
    double beyond = 0;
    double count = 0;
    for (std::size_t r = 0; r < b.size(); ++r)
        for (std::size_t i = 0; i < b[r].size(); ++i) {
            const double step = std::ldexp(1.0, std::ilogb(b[r][i] == 0 ? 1e-30 : b[r][i]) - 7);
            beyond += std::fabs(a[r][i] - b[r][i]) > step ? 1 : 0;
            ++count;
        }
    return count == 0 ? 0 : beyond / count;
}

void expect_near(const Case& c, const std::vector<std::vector<double>>& got) {
    const auto oracle = c.reference(Rounding::kKernel);
    const double rounded = suite::distance(got, oracle);
    const double exact = suite::distance(got, c.reference(Rounding::kNone));
    EXPECT_LE(rounded, tolerance(c.problem.type));
    if (c.problem.type == Type::kBf16) {
        EXPECT_LE(beyond_one_step(got, oracle), 1e-3);
        EXPECT_LE(exact, 4e-3);
    } else {
        EXPECT_LE(exact, 5e-2);  // e4m3 has three bits of fraction
    }
    testing::Test::RecordProperty("relative_l2_rounded", std::to_string(rounded));
    testing::Test::RecordProperty("relative_l2_exact", std::to_string(exact));
    std::printf("relative L2: oracle %.2e, exact %.2e\n", rounded, exact);
}

TEST_P(MegaMoeOnGpu, OneRank) {
    const Case c(problem_of(GetParam(), 1, 300), {300}, 1);
    GpuLayer layer(c);
    expect_near(c, layer.run());
}

TEST_P(MegaMoeOnGpu, RanksOfUnequalTokens) {
    for (const auto& tokens :
         std::vector<std::vector<int>>{{17, 384}, {0, 128, 1, 77}, {1, 0, 5, 128, 0, 33, 64, 9}}) {
        const Case c(problem_of(GetParam(), static_cast<int>(tokens.size()), 384), tokens, 7);
        GpuLayer layer(c);
        expect_near(c, layer.run());
    }
}

TEST_P(MegaMoeOnGpu, OrdersAndStorePathsGiveTheSameBits) {
    for (const int ranks : {1, 2, 8}) {
        Problem p = problem_of(GetParam(), ranks, 150);
        p.intermediate = 384;  // fewer Linear-1 than Linear-2 tiles the one time
        p.hidden = ranks == 2 ? 1280 : 512;
        p.top_k = 3;
        p.experts = 16;
        const Case c(p, std::vector<int>(static_cast<std::size_t>(ranks), ranks == 8 ? 50 : 150),
                     11);
        GpuLayer layer(c);
        const auto first = layer.run();
        expect_near(c, first);
        for (const plan::MoeOrder& order : suite::all_orders())
            for (const StorePath path : {StorePath::kSt16, StorePath::kBulk}) {
                layer.moe().set_order(order);
                layer.moe().set_store_path(path);
                EXPECT_EQ(layer.run(), first) << name_of(order);
            }
    }
}

TEST_P(MegaMoeOnGpu, AllTokensToOneExpertThroughTheSmallestRing) {
    Problem p = problem_of(GetParam(), 2, 700);
    Case c(p, {700, 650}, 3);
    for (auto& rank : c.ranks)
        for (std::size_t i = 0; i < rank.experts.size(); ++i) rank.experts[i] = i % 2 == 0 ? 5 : -1;
    std::vector<std::vector<double>> first;
    for (const char* name : {"wave:all", "lead:1", "lead:4", "lead:3/2"}) {
        Options o;
        o.order = parse_order(name);
        if (o.order.kind == plan::MoeOrderKind::kLead) o.ring_blocks = least_ring(p, o.order);
        GpuLayer layer(c, o);
        const auto got = layer.run();
        if (first.empty()) expect_near(c, got);
        if (first.empty()) first = got;
        EXPECT_EQ(got, first) << name;
        EXPECT_EQ(layer.run(), first) << name;  // the ring's counters are back at zero
    }
}

TEST_P(MegaMoeOnGpu, RoutesOfOneTokenToOneExpertTwice) {
    Case c(problem_of(GetParam(), 2, 64), {64, 64}, 4);
    for (auto& rank : c.ranks) std::fill(rank.experts.begin(), rank.experts.end(), 2);
    GpuLayer layer(c);
    expect_near(c, layer.run());
}

TEST_P(MegaMoeOnGpu, MaskedTokensAreExactlyZero) {
    Case c(problem_of(GetParam(), 2, 96), {96, 40}, 5);
    std::mt19937 random(9);
    for (auto& rank : c.ranks)
        for (auto& e : rank.experts)
            if (random() % 10 < 3) e = -1;
    c.ranks[0].experts[0] = c.ranks[0].experts[1] = -1;
    GpuLayer layer(c);
    const auto got = layer.run();  // y was NaN before
    expect_near(c, got);
    for (int n = 0; n < c.problem.hidden; ++n) EXPECT_EQ(got[0][static_cast<std::size_t>(n)], 0);
    for (auto& rank : c.ranks) std::fill(rank.experts.begin(), rank.experts.end(), -1);
    layer.load(c);
    for (const auto& y : layer.run())
        for (const double v : y) ASSERT_EQ(v, 0);
}

TEST_P(MegaMoeOnGpu, NanStaysInItsToken) {
    Case c(problem_of(GetParam(), 2, 50), {50, 50}, 6);
    GpuLayer layer(c);
    const auto clean = layer.run();
    const std::size_t width = static_cast<std::size_t>(c.problem.hidden);
    const std::size_t bytes = width * static_cast<std::size_t>(c.problem.element_bytes());
    std::fill_n(c.ranks[1].x.begin() + static_cast<std::ptrdiff_t>(7 * bytes), bytes,
                static_cast<std::byte>(0x7f));  // NaN in e4m3
    if (GetParam() == Type::kBf16)
        for (std::size_t i = 0; i < width; ++i) c.ranks[1].x[7 * bytes + 2 * i] = std::byte{0xff};
    layer.load(c);
    const auto got = layer.run();
    EXPECT_EQ(got[0], clean[0]);
    for (std::size_t i = 0; i < got[1].size(); ++i) {
        if (i / width == 7) {
            ASSERT_TRUE(std::isnan(got[1][i]));
        } else {
            ASSERT_EQ(got[1][i], clean[1][i]);
        }
    }
}

TEST_P(MegaMoeOnGpu, AnExpertThatDoesNotExistGivesNan) {
    Case c(problem_of(GetParam(), 1, 4), {4}, 8);
    c.ranks[0].experts[2] = 8;
    GpuLayer layer(c);
    const auto got = layer.run();
    EXPECT_TRUE(std::isnan(got[0][512]));
    EXPECT_FALSE(std::isnan(got[0][0]));
    EXPECT_FALSE(std::isnan(got[0][1024]));
}

TEST_P(MegaMoeOnGpu, MoreTokensThanTheLayerIsBuiltForAreRefused) {
    Case c(problem_of(GetParam(), 2, 32), {32, 33}, 8);
    GpuLayer layer(c);
    EXPECT_THROW(layer.launch(), Error);
    EXPECT_FALSE(layer.group().failure().has_value());  // nothing was launched
}

TEST_P(MegaMoeOnGpu, WideTokensAndClamp) {
    for (const int hidden : {5120, 7168, 8192}) {
        Problem p = problem_of(GetParam(), 1, 40);
        p.hidden = hidden;
        p.intermediate = 128;
        p.clamp = 0.5F;
        const Case c(p, {40}, 12);
        GpuLayer layer(c);
        expect_near(c, layer.run());
    }
}

TEST_P(MegaMoeOnGpu, ResultsDoNotDependOnTheCapacity) {
    Case small(problem_of(GetParam(), 2, 32), {32, 32}, 13);
    GpuLayer first(small);
    const auto expected = first.run();
    Case large = small;
    large.problem.max_tokens = 200000;
    GpuLayer second(large);
    EXPECT_EQ(second.run(), expected);
}

TEST_P(MegaMoeOnGpu, SameBitsEveryTimeWhileAnotherKernelHoldsAnSm) {
    const Case c(problem_of(GetParam(), 2, 256), {256, 200}, 14);
    GpuLayer layer(c);
    const auto first = layer.run();
    for (int i = 0; i < 50; ++i) {
        if (i % 10 == 0) layer.occupy();
        ASSERT_EQ(layer.run(), first) << i;
    }
}

// Blocks with few rows leave one math group idle, which must keep pace with the other.
TEST_P(MegaMoeOnGpu, HalfEmptyBlocksManyTimes) {
    Problem p = problem_of(GetParam(), 1, 64);
    p.hidden = 2048;
    p.experts = 32;
    p.top_k = 4;
    const Case c(p, {64}, 16);
    GpuLayer layer(c);
    const auto first = layer.run();
    expect_near(c, first);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(layer.run(), first) << i;
}

TEST_P(MegaMoeOnGpu, GraphReplaysWithRoutingThatChanges) {
    const Problem p = problem_of(GetParam(), 2, 128);
    std::vector<Case> cases;
    std::vector<std::vector<std::vector<double>>> expected;
    Options o;
    o.order = parse_order("lead:2");
    for (unsigned i = 0; i < 3; ++i) cases.emplace_back(p, std::vector<int>{128, 100}, 20);
    for (unsigned i = 1; i < 3; ++i) {
        std::mt19937 random(i);
        for (auto& rank : cases[i].ranks)
            for (auto& e : rank.experts) e = static_cast<int>(random() % 10) - 2;
        for (auto& rank : cases[i].ranks)
            for (auto& e : rank.experts) e = std::max(e, -1);
    }
    GpuLayer layer(cases[0], o);
    for (const Case& c : cases) {
        layer.load(c);
        expected.push_back(layer.run());
        expect_near(c, expected.back());
    }
    int wrong = 0;
    layer.replay(
        100, [&](int i) { layer.load(cases[static_cast<std::size_t>(i) % 3]); },
        [&](int i) {
            wrong += layer.results() != expected[static_cast<std::size_t>(i) % 3] ? 1 : 0;
        });
    EXPECT_EQ(wrong, 0);
}

TEST_P(MegaMoeOnGpu, LayersComeAndGo) {
    const Case c(problem_of(GetParam(), 2, 16), {16, 3}, 15);
    std::vector<std::vector<double>> first;
    for (int i = 0; i < 50; ++i) {
        GpuLayer layer(c);
        const auto got = layer.run();
        if (first.empty()) first = got;
        ASSERT_EQ(got, first);
    }
}

}  // namespace
}  // namespace xstage::moe
