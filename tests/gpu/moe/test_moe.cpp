// What one call gives.

#include "moe_on_gpu.hpp"

namespace xstage::moe {
namespace {

INSTANTIATE_TEST_SUITE_P(Types, MegaMoeOnGpu, testing::Values(Type::kBf16, Type::kFp8),
                         [](const auto& info) {
                             return info.param == Type::kFp8 ? "fp8" : "bf16";
                         });

TEST_P(MegaMoeOnGpu, OneRank) {
    const Case c(problem_of(GetParam(), 1, 300), {300}, 1);
    GpuLayer layer(c);
    expect_near(c, layer.run());
}

TEST_P(MegaMoeOnGpu, RanksOfUnequalTokens) {
    for (const auto& tokens : std::vector<std::vector<int>>{
             {17, 384}, {0, 64}, {0, 0}, {0, 128, 1, 77}, {1, 0, 5, 128, 0, 33, 64, 9}}) {
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

TEST_P(MegaMoeOnGpu, PairsNeedTwoCtas) {
    Case c(problem_of(GetParam(), 1, 4), {4}, 8);
    Options o;
    o.blocks = 1;
    o.order = parse_order("wave:all*2");
    GpuLayer layer(c, o);
    EXPECT_THROW(layer.launch(), Error);
    EXPECT_FALSE(layer.group().failure().has_value());  // nothing was launched
    layer.moe().set_order(parse_order("wave:all"));
    layer.launch();
}

TEST_P(MegaMoeOnGpu, MoreTokensThanTheLayerIsBuiltForAreRefused) {
    Case c(problem_of(GetParam(), 2, 32), {32, 33}, 8);
    GpuLayer layer(c);
    EXPECT_THROW(layer.launch(), Error);
    EXPECT_FALSE(layer.group().failure().has_value());  // nothing was launched
}

TEST_P(MegaMoeOnGpu, WideTokensAndClamp) {
    for (const int hidden : {5120, 6144, 7168, 8192}) {
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

// Blocks with few rows leave one math group idle, which must keep pace with the other.
// A math group takes 64 rows, a warp 16: both sides of every border.
TEST_P(MegaMoeOnGpu, BlocksOfEveryFilling) {
    for (const int ranks : {1, 2}) {
        Problem p = problem_of(GetParam(), ranks, 660);
        p.top_k = 1;
        p.hidden = 768;
        p.intermediate = 384;
        Case c(p, std::vector<int>(static_cast<std::size_t>(ranks), 660), 21);
        const int rows[8] = {1, 63, 64, 65, 127, 128, 129, 83};  // of each expert, from each rank
        for (auto& rank : c.ranks) {
            rank.experts.clear();
            for (int e = 0; e < 8; ++e) rank.experts.insert(rank.experts.end(), rows[e], e);
            rank.experts.resize(660, -1);
        }
        GpuLayer layer(c);
        const auto first = layer.run();
        expect_near(c, first);
        for (const char* name : {"lead:1", "ratio", "alternate/4", "wave:all*2", "ratio*2"})
            for (const StorePath path : {StorePath::kSt16, StorePath::kBulk}) {
                layer.moe().set_order(parse_order(name));
                layer.moe().set_store_path(path);
                EXPECT_EQ(layer.run(), first) << name;
            }
    }
}

TEST_P(MegaMoeOnGpu, SharedExpert) {
    for (const auto& tokens :
         std::vector<std::vector<int>>{{200}, {150, 90}, {0, 40}, {1, 0, 5, 128, 0, 33, 64, 9}}) {
        Problem p = problem_of(GetParam(), static_cast<int>(tokens.size()), 200);
        p.shared = true;
        p.top_k = 3;
        Case c(p, tokens, 22);
        std::fill_n(c.ranks.back().experts.begin(), 3, -1);  // only the shared one is left
        GpuLayer layer(c);
        const auto first = layer.run();
        expect_near(c, first);
        for (const plan::MoeOrder& order : suite::all_orders()) {
            layer.moe().set_order(order);
            EXPECT_EQ(layer.run(), first) << name_of(order);
        }
        Options o;
        o.order = parse_order("lead:2");
        o.ring_blocks = least_ring(p, o.order);
        GpuLayer ring(c, o);
        EXPECT_EQ(ring.run(), first);
        EXPECT_EQ(ring.run(), first);
    }
}

// Each replay takes the number of tokens that stands in memory then.
// Nothing is set up by the first call that a capture would forbid.
// Slots of a token that are read while later tokens' are on their way.
}  // namespace
}  // namespace xstage::moe
