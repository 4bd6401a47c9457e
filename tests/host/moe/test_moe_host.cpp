// The whole operator on the host backend, ranks as threads: what travels, and what is refused.

#include <gtest/gtest.h>

#include "host/fabric/groups.hpp"
#include "moe_case.hpp"

namespace xstage::moe {
namespace {

using fabric::testing::host_options;
using fabric::testing::run_threads;
using suite::Case;

Problem problem_of(Type type, int ranks) {
    Problem p;
    p.ranks = ranks;
    p.max_tokens = 24;
    p.hidden = 256;
    p.intermediate = 128;
    p.experts = 8;
    p.top_k = 3;
    p.type = type;
    return p;
}

using Results = std::vector<std::vector<double>>;

/// Runs `calls` cases one after the other on one layer and gives the results of each.
std::vector<Results> run(const std::vector<Case>& calls, const Options& options = {}) {
    const Problem& p = calls[0].problem;
    const std::string name = fabric::testing::fresh_name();
    std::vector<Results> all(calls.size(), Results(static_cast<std::size_t>(p.ranks)));
    const auto errors = run_threads(p.ranks, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        fabric::Fabric group(host_options(name, rank, p.ranks));
        const Weights weights = calls[0].weights(r);
        MegaMoe moe(group, p, std::span(&weights, 1), options);
        for (std::size_t i = 0; i < calls.size(); ++i) {
            Input in = calls[i].input(r);
            std::vector<std::uint16_t> y(static_cast<std::size_t>(in.tokens * p.hidden) + 8,
                                         0xffff);
            in.y = y.data();
            moe.run(std::span(&in, 1));
            for (std::size_t j = 0; j < static_cast<std::size_t>(in.tokens * p.hidden); ++j)
                all[i][r].push_back(from_bf16(y[j]));
        }
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
    return all;
}

TEST(MoeHost, RanksComputeTheLayer) {
    for (const Type type : {Type::kBf16, Type::kFp8})
        for (const auto& tokens :
             std::vector<std::vector<int>>{{24}, {24, 7}, {0, 24}, {0, 0}, {3, 0, 24, 11}}) {
            const Case c(problem_of(type, static_cast<int>(tokens.size())), tokens, 3);
            EXPECT_EQ(run({c})[0], c.reference(Rounding::kKernel));
        }
}

TEST(MoeHost, ASharedExpertTakesEveryTokenOfItsRank) {
    for (const Type type : {Type::kBf16, Type::kFp8})
        for (const auto& tokens : std::vector<std::vector<int>>{{9}, {24, 7}, {0, 24}}) {
            Problem p = problem_of(type, static_cast<int>(tokens.size()));
            p.shared = true;
            Case c(p, tokens, 9);
            std::fill(c.ranks.back().experts.begin(), c.ranks.back().experts.begin() + 3, -1);
            EXPECT_EQ(run({c})[0], c.reference(Rounding::kKernel));
        }
}

TEST(MoeHost, TokensAndRoutingChangeFromCallToCall) {
    const Problem p = problem_of(Type::kBf16, 2);
    std::vector<Case> calls;
    for (const auto& tokens : std::vector<std::vector<int>>{{24, 24}, {0, 1}, {5, 0}, {24, 24}}) {
        calls.emplace_back(p, tokens, 4);
        for (std::size_t r = 0; r < 2; ++r) {
            calls.back().ranks[r].w1 = calls[0].ranks[r].w1;
            calls.back().ranks[r].w2 = calls[0].ranks[r].w2;
        }
    }
    for (auto& rank : calls[3].ranks) std::fill(rank.experts.begin(), rank.experts.end(), 6);
    const std::vector<Results> got = run(calls);
    for (std::size_t i = 0; i < calls.size(); ++i)
        EXPECT_EQ(got[i], calls[i].reference(Rounding::kKernel)) << i;
}

TEST(MoeHost, MaskedTokensAreZeroAndUnknownExpertsNan) {
    Case c(problem_of(Type::kFp8, 2), {4, 4}, 5);
    std::fill_n(c.ranks[0].experts.begin(), 3, -1);
    c.ranks[1].experts[3] = 8;
    const Results got = run({c})[0];
    for (std::size_t n = 0; n < 256; ++n) {
        EXPECT_EQ(got[0][n], 0);
        EXPECT_TRUE(std::isnan(got[1][256 + n]));
        EXPECT_FALSE(std::isnan(got[1][n]));
    }
}

/// Builds a layer on two ranks, of which the second does something else.
std::vector<std::string> build_two(const std::function<void(Problem&, Options&, int)>& change) {
    const std::string name = fabric::testing::fresh_name();
    return run_threads(2, [&](int rank) {
        Problem p = problem_of(Type::kBf16, 2);
        Options o;
        change(p, o, rank);
        const Case c(problem_of(Type::kBf16, 2), {4, 4}, 6);
        fabric::Fabric group(host_options(name, rank, 2));
        const Weights weights = c.weights(static_cast<std::size_t>(rank));
        MegaMoe moe(group, p, std::span(&weights, 1), o);
    });
}

TEST(MoeHost, AFaultOfOneRankIsAnErrorOnAll) {
    const auto both_fail = [](const std::vector<std::string>& errors, const char* with) {
        for (const std::string& e : errors) EXPECT_NE(e.find(with), std::string::npos) << e;
    };
    both_fail(build_two([](Problem&, Options& o, int rank) {
                  if (rank == 1) o.workspace_limit = 4096;
              }),
              "workspace");
    both_fail(build_two([](Problem& p, Options&, int rank) {
                  if (rank == 1) p.hidden = 300;
              }),
              "hidden");
    both_fail(build_two([](Problem& p, Options&, int rank) {
                  if (rank == 1) p.top_k = 2;
              }),
              "k=");
    both_fail(build_two([](Problem& p, Options&, int rank) {
                  if (rank == 1) p.shared = true;
              }),
              "E=8");
    for (const std::string& e : build_two([](Problem&, Options&, int) {})) EXPECT_EQ(e, "");
}

TEST(MoeHost, TooManyTokensOnOneRankStopAllBeforeAnythingRuns) {
    const Problem p = problem_of(Type::kBf16, 2);
    const Case c(p, {25, 24}, 7);
    const std::string name = fabric::testing::fresh_name();
    const auto errors = run_threads(2, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        fabric::Fabric group(host_options(name, rank, 2));
        const Weights weights = c.weights(r);
        Options o;
        o.agree_on_calls = true;
        MegaMoe moe(group, p, std::span(&weights, 1), o);
        Input in = c.input(r);
        std::vector<std::uint16_t> y(static_cast<std::size_t>(25 * p.hidden) + 8, 0x1234);
        in.y = y.data();
        EXPECT_THROW(moe.run(std::span(&in, 1)), Error);
        for (const std::uint16_t v : y) ASSERT_EQ(v, 0x1234);
        in.tokens = std::min(in.tokens, 24);  // the group is whole, and goes on
        moe.run(std::span(&in, 1));
        EXPECT_NE(y[0], 0x1234);
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(MoeHost, StampsAreTheKernels) {
    const std::string name = fabric::testing::fresh_name();
    const auto errors = run_threads(1, [&](int) {
        const Case c(problem_of(Type::kBf16, 1), {4}, 6);
        fabric::Fabric group(host_options(name, 0, 1));
        const Weights weights = c.weights(0);
        MegaMoe moe(group, c.problem, std::span(&weights, 1));
        EXPECT_EQ(moe.stamp_producers(), 0);
        std::vector<Stamp> stamps(1);
        std::uint32_t dropped = 0;
        const StampBuffer buffer{stamps.data(), &dropped, 1, 1};
        try {
            moe.set_stamps(std::span(&buffer, 1));
            ADD_FAILURE() << "stamps on the host";
        } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
        }
        const StampBuffer two[2] = {buffer, buffer};
        EXPECT_THROW(moe.set_stamps(two), Error);
        moe.set_stamps({});
    });
    EXPECT_EQ(errors[0], "");
}

TEST(MoeHost, CapacityDoesNotChangeTheResult) {
    const Case small(problem_of(Type::kFp8, 2), {9, 4}, 8);
    Case large = small;
    large.problem.max_tokens = 3000;
    EXPECT_EQ(run({small}), run({large}));
}

}  // namespace
}  // namespace xstage::moe
