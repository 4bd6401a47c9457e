// Calls after calls: the same bits, graphs, stamps, and layers that come and go.

#include "moe_on_gpu.hpp"

namespace xstage::moe {
namespace {

class MegaMoeRepeated : public MegaMoeOnGpu {};
INSTANTIATE_TEST_SUITE_P(Types, MegaMoeRepeated, testing::Values(Type::kBf16, Type::kFp8),
                         [](const auto& info) {
                             return info.param == Type::kFp8 ? "fp8" : "bf16";
                         });

TEST_P(MegaMoeRepeated, SameBitsEveryTimeWhileAnotherKernelHoldsAnSm) {
    const Case c(problem_of(GetParam(), 2, 256), {256, 200}, 14);
    GpuLayer layer(c);
    const auto first = layer.run();
    for (int i = 0; i < 50; ++i) {
        if (i % 10 == 0) layer.occupy();
        ASSERT_EQ(layer.run(), first) << i;
    }
}

TEST_P(MegaMoeRepeated, HalfEmptyBlocksManyTimes) {
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

TEST_P(MegaMoeRepeated, StampsAccountForEveryRowAndChangeNoBit) {
    // Every expert gets half as many rows as a rank has tokens: 100 for both math groups, 20 for
    // one.
    for (const int tokens : {200, 40}) {
        Case c(problem_of(GetParam(), 2, tokens), {tokens, tokens}, 23);
        for (auto& rank : c.ranks)
            for (std::size_t i = 0; i < rank.experts.size(); ++i)
                rank.experts[i] = static_cast<std::int32_t>(i % 8);
        GpuLayer layer(c);
        const auto first = layer.run();
        for (const char* name : {"wave:all", "alternate+264/16", "wave:all*2"})
            for (const StorePath path : {StorePath::kSt16, StorePath::kBulk}) {
                layer.moe().set_order(parse_order(name));
                layer.moe().set_store_path(path);
                const auto all = layer.stamps();
                EXPECT_EQ(layer.results(), first) << name;
                for (const std::vector<Stamp>& of_rank : all) {
                    // Half of all routes are this rank's, and half of those come from the other. A
                    // burst is 256 columns of its rows.
                    std::int64_t bytes = 0;
                    std::int64_t away = 0;
                    for (const Stamp& s : of_rank) {
                        bytes += s.bytes;
                        away += s.destination * 256;
                        EXPECT_LE(s.issue_start_cycles, s.issue_end_cycles);
                        EXPECT_LE(s.issue_start_ns, s.issue_end_ns);
                        EXPECT_LT(s.issue_end_ns - s.issue_start_ns, 100'000'000U);
                    }
                    EXPECT_EQ(bytes, 2 * tokens * 512 * 2);
                    EXPECT_EQ(away, tokens * 512);
                }
            }
        EXPECT_EQ(layer.run(), first);  // without stamps again
    }
}

TEST_P(MegaMoeRepeated, GraphReplaysWithTokensThatChange) {
    const Case c(problem_of(GetParam(), 2, 128), {128, 128}, 24);
    GpuLayer layer(c);
    layer.set_tokens({128, 128});
    const auto whole = c.reference(Rounding::kKernel);
    const auto first = layer.run();
    EXPECT_LE(suite::distance(first, whole), tolerance(GetParam()));
    const std::vector<std::vector<std::int32_t>> counts = {{1, 128}, {5, 0}, {0, 0}, {128, 17}};
    const std::size_t width = static_cast<std::size_t>(c.problem.hidden);
    int wrong = 0;
    std::vector<std::vector<double>> before;
    layer.replay(
        40,
        [&](int i) {
            before = layer.results();
            layer.set_tokens(counts[static_cast<std::size_t>(i) % 4]);
        },
        [&](int i) {
            // What is counted is as in the whole batch; what is not stays as it was.
            const auto got = layer.results();
            for (std::size_t r = 0; r < 2; ++r) {
                const auto tokens =
                    static_cast<std::size_t>(counts[static_cast<std::size_t>(i) % 4][r]);
                for (std::size_t j = 0; j < got[r].size(); ++j)
                    wrong += got[r][j] != (j / width < tokens ? first : before)[r][j] ? 1 : 0;
            }
        });
    EXPECT_EQ(wrong, 0);
}

TEST_P(MegaMoeRepeated, FirstCallIsCaptured) {
    const Case c(problem_of(GetParam(), 2, 64), {64, 20}, 25);
    GpuLayer layer(c);
    layer.replay(
        1, [](int) {}, [&](int) { expect_near(c, layer.results()); });
}

TEST_P(MegaMoeRepeated, AThousandReplaysOfWideTokensAreTheSame) {
    Problem p = problem_of(GetParam(), 2, 24);
    p.hidden = 7168;
    p.intermediate = 128;
    p.top_k = 4;
    const Case c(p, {24, 24}, 26);
    GpuLayer layer(c);
    const auto first = layer.run();
    int wrong = 0;
    layer.replay(
        1000, [](int) {}, [&](int) { wrong += layer.results() != first ? 1 : 0; });
    EXPECT_EQ(wrong, 0);
}

TEST_P(MegaMoeRepeated, GraphReplaysWithRoutingThatChanges) {
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

TEST_P(MegaMoeRepeated, LayersComeAndGo) {
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
