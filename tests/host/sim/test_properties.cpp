#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>

#include "expect_error.hpp"
#include "host/sim/nodes.hpp"
#include "sim/bursts.hpp"
#include "sim/engine.hpp"

namespace xstage::sim {
namespace {

Node random_node(int sms) {
    Node node;
    node.sms = sms;
    for (int left = sms; left > 0;) {
        node.groups.push_back(*rc::gen::inRange(1, left + 1));
        left -= node.groups.back();
    }
    node.link_rate = *rc::gen::inRange(20, 900);
    node.ingress_rate = node.link_rate * *rc::gen::element(1.0, 1.2, 0.7);
    node.ingress_buffer = 1e4;
    node.network_rate = *rc::gen::inRange(5, 100);
    node.private_room = *rc::gen::inRange(0, 1 << 15);
    node.shared_room = *rc::gen::inRange(0, 1 << 17);
    node.shared_cap = *rc::gen::inRange(1, 1 << 16);
    node.producer_rate = *rc::gen::inRange(10, 100);
    node.issue_base_ns = *rc::gen::inRange(0, 300);
    node.issue_rate = *rc::gen::inRange(5, 100);
    if (node.groups.size() > 1 && *rc::gen::arbitrary<bool>()) {
        const int first = *rc::gen::inRange(1, node.group_count());
        node.halves = {first, node.group_count() - first};
        node.balance = *rc::gen::element(1.0, 0.9, 1.2);
    }
    node.favour = *rc::gen::element(0.0, 0.5);
    node.disfavour = *rc::gen::element(0.0, 0.2);
    node.keep = *rc::gen::element(0.0, 0.7);
    node.turn_bytes = *rc::gen::element(0, 20000);
    node.lasting = *rc::gen::element(1.0, 0.3);
    return node;
}

Trace random_trace(int gpus, int sms) {
    Trace trace;
    trace.in_step = *rc::gen::arbitrary<bool>();
    const int bursts = *rc::gen::inRange(1, 60);
    for (int i = 0; i < bursts; ++i) {
        trace.bursts.push_back({*rc::gen::inRange(0, gpus), *rc::gen::inRange(0, sms),
                                *rc::gen::inRange(0, gpus),
                                static_cast<double>(*rc::gen::inRange(0, 5000)),
                                static_cast<double>(*rc::gen::inRange(1, 1 << 18))});
    }
    return trace;
}

Result run_trace(const Cluster& cluster, const Trace& trace, int threads = 1, bool record = false) {
    return run(cluster, trace_programs(cluster, trace), {record, threads, 2000});
}

RC_GTEST_PROP(Conservation, WhatIsIssuedIsDrainedAndArrives, ()) {
    const int gpus = *rc::gen::inRange(2, 7), sms = *rc::gen::inRange(1, 9);
    const Cluster cluster{random_node(sms), gpus, *rc::gen::element(0, 2)};
    const Trace trace = random_trace(gpus, sms);
    const Result result = run_trace(cluster, trace);
    std::vector<double> sent(static_cast<std::size_t>(gpus)), taken(sent);
    for (const TraceBurst& burst : trace.bursts) {
        if (burst.rank == burst.destination) continue;
        sent[static_cast<std::size_t>(burst.rank)] += burst.bytes;
        taken[static_cast<std::size_t>(burst.destination)] += burst.bytes;
    }
    for (std::size_t g = 0; g < sent.size(); ++g) {
        const RankResult& rank = result.ranks[g];
        RC_ASSERT(std::abs(rank.bytes_issued - sent[g]) < 1e-3);
        RC_ASSERT(std::abs(rank.bytes_drained - sent[g]) < 1e-3);
        RC_ASSERT(std::abs(rank.bytes_arrived - taken[g]) < 1e-3);
        RC_ASSERT(rank.peak_bytes <= cluster.node.room() + 1e-2);
        // Nothing is faster than the links, or than the producer with the most to do.
        RC_ASSERT(rank.issued_ns <= rank.drained_ns + 1e-6 || rank.bytes_issued == 0 ||
                  rank.drained_ns > 0);
    }
}

RC_GTEST_PROP(Spans, KeepTheirOrderAndTheLinkRate, ()) {
    const int gpus = *rc::gen::inRange(2, 5), sms = *rc::gen::inRange(1, 9);
    const Cluster cluster{random_node(sms), gpus, 0};
    const Result result = run_trace(cluster, random_trace(gpus, sms), 1, true);
    for (const Span& span : result.spans) {
        RC_ASSERT(span.start_ns <= span.issue_ns);
        RC_ASSERT(span.issue_ns <= span.issued_ns);
        RC_ASSERT(span.visible_ns >= span.drained_ns);
        if (span.bytes > 0) RC_ASSERT(span.drained_ns >= span.issued_ns - 1e-3);
        const double least = std::min(cluster.node.link_rate, cluster.node.producer_rate);
        if (span.bytes > 0) {
            RC_ASSERT(span.drained_ns - span.issue_ns >= span.bytes / least * (1 - 1e-6) - 1e-3);
        }
    }
    for (const RankResult& rank : result.ranks) {
        RC_ASSERT(rank.drained_ns >= rank.bytes_issued / cluster.node.link_rate * (1 - 1e-6));
    }
}

RC_GTEST_PROP(Monotonicity, MoreRoomRateOrLessToDoIsNotSlower, ()) {
    // Equal producers: between unequal ones a faster link may let the wrong one go first.
    const int sms = *rc::gen::inRange(1, 20);
    Node node = random_node(sms);
    node.groups.clear();
    node.halves.clear();
    node.favour = node.disfavour = 0;
    node.ingress_rate = kUnlimited;
    std::vector<double> bytes, gaps;
    for (int i = *rc::gen::inRange(1, 6); i > 0; --i) {
        bytes.push_back(*rc::gen::inRange(1, 1 << 17));
        gaps.push_back(*rc::gen::inRange(0, 3000));
    }
    const auto time = [&](const Node& n, const std::vector<double>& b) {
        const Cluster cluster{n, 2, 0};
        return run_trace(cluster, uniform_trace(2, sms, b, gaps, false, true)).total_ns;
    };
    const double base = time(node, bytes);
    const double slack = base * (1 + 1e-9) + 1e-3;
    Node better = node;
    better.link_rate *= 1.3;
    RC_ASSERT(time(better, bytes) <= slack);
    better = node;
    better.private_room += 5000;
    RC_ASSERT(time(better, bytes) <= slack);
    better = node;
    better.shared_room *= 1.5;
    RC_ASSERT(time(better, bytes) <= slack);
    std::vector<double> less = bytes;
    less[0] *= 0.7;
    RC_ASSERT(time(node, less) <= slack);
}

RC_GTEST_PROP(Determinism, ThreadsDoNotChangeTheResult, ()) {
    const int gpus = *rc::gen::inRange(2, 7), sms = *rc::gen::inRange(1, 6);
    const Cluster cluster{random_node(sms), gpus, 0};
    const Trace trace = random_trace(gpus, sms);
    const Result one = run_trace(cluster, trace, 1), two = run_trace(cluster, trace, 2);
    RC_ASSERT(one.total_ns == two.total_ns);
    RC_ASSERT(one.events == two.events);
    for (std::size_t g = 0; g < one.ranks.size(); ++g) {
        RC_ASSERT(one.ranks[g].drained_ns == two.ranks[g].drained_ns);
        RC_ASSERT(one.ranks[g].peak_bytes == two.ranks[g].peak_bytes);
    }
}

// Seven GPUs that all store to one: its ingress link is what takes the time, within one slice.
TEST(Incast, TakesTheIngressRate) {
    Node node = sim::test::paper_node();
    const Cluster cluster{node, 8, 0};
    Trace trace;
    for (int rank = 1; rank < 8; ++rank) {
        for (int p = 0; p < 148; ++p) trace.bursts.push_back({rank, p, 0, 0, 65536});
    }
    const Result result = run_trace(cluster, trace);
    EXPECT_TRUE(result.incast);
    const double expected = 7 * 148 * 65536.0 / node.ingress_rate;
    EXPECT_GT(result.total_ns, expected * 0.95);
    EXPECT_LT(result.total_ns, expected + 2 * 2000);
    // Spread over all GPUs the same bytes meet no such limit.
    for (TraceBurst& burst : trace.bursts) burst.destination = (burst.rank + 1) % 8;
    const Result spread = run_trace(cluster, trace);
    EXPECT_FALSE(spread.incast);
    EXPECT_NEAR(spread.total_ns, 148 * 65536.0 / node.link_rate, 1);
}

TEST(Incast, OtherDestinationsGoOn) {
    const Cluster cluster{sim::test::paper_node(), 4, 0};
    Trace trace;
    for (int rank = 1; rank < 4; ++rank) {
        for (int p = 0; p < 148; ++p) {
            const int aside = rank == 3 ? 1 : rank + 1;
            trace.bursts.push_back({rank, p, p % 2 == 0 ? 0 : aside, 0, 131072});
        }
    }
    const Result result = run_trace(cluster, trace, 1, true);
    ASSERT_TRUE(result.incast);
    double hot = 0, aside = 0;
    for (const Span& span : result.spans) {
        double& last = span.producer % 2 == 0 ? hot : aside;
        last = std::max(last, span.drained_ns);
    }
    // 1.5 links' worth of stores go to GPU 0, half a link's to each other one.
    EXPECT_NEAR(hot, 3 * 74 * 131072.0 / 717, 0.1 * hot);
    EXPECT_LT(aside, 0.75 * hot);
}

TEST(Network, CarriesWhatLeavesTheDomain) {
    Node node = sim::test::paper_node();
    node.network_rate = 50;
    node.network_latency_ns = 5000;
    const Cluster cluster{node, 4, 2};
    Trace trace;
    for (int p = 0; p < 148; ++p) trace.bursts.push_back({0, p, 2, 0, 32768});
    const Result result = run_trace(cluster, trace);
    EXPECT_NEAR(result.ranks[0].drained_ns, 148 * 32768.0 / 50, 1);
    EXPECT_NEAR(result.ranks[0].visible_ns, result.ranks[0].drained_ns + 5000, 1e-6);
}

// Steps that wait for a gate which nobody opens must end in an error, not in an endless loop.
TEST(Gates, StandstillIsAnError) {
    struct Stuck : Program {
        std::vector<Route> none;
        int producers() const override { return 1; }
        const std::vector<Route>& routes() const override { return none; }
        int gates() const override { return 1; }
        bool open(int) const override { return false; }
        bool claim(int, Step& step) override {
            step = Step{};
            step.gate = 0;
            return true;
        }
    };
    const Cluster cluster{Node{}, 1, 0};
    const std::string message = xstage::test::bad_input([&] {
        run(cluster, [](int) { return std::make_unique<Stuck>(); }, {false, 1, 4000});
    });
    EXPECT_THAT(message, testing::HasSubstr("wait for each other"));
}

}  // namespace
}  // namespace xstage::sim
