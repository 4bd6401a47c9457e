#include <gtest/gtest.h>

#include <algorithm>

#include "model_checker.hpp"
#include "xstage/fabric/signals.hpp"

namespace xstage::fabric {
namespace {

using checker::calls;
using checker::Item;
using checker::Phase;
using checker::Scenario;

std::vector<Item> operator+(std::vector<Item> a, const std::vector<Item>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const std::vector<Item> kReplay{{Phase::kReplay}};

// A captured sequence of odd length, replayed, with an eager call between: buffer 0 twice running.
std::vector<Item> odd_replays() {
    return kReplay + calls({0, 1, 0}) + kReplay + calls({0, 1, 0}) + calls({1});
}

// The second call begins and publishes before the first has been acquired, on another buffer.
std::vector<Item> overlapping_calls() {
    std::vector<Item> script;
    for (int round = 0; round < 2; ++round)
        for (Phase phase :
             {Phase::kBegin, Phase::kStore, Phase::kPublish, Phase::kAcquire, Phase::kRead})
            for (int b : {0, 1}) script.push_back({phase, b});
    return script;
}

std::vector<Item> barrier_rounds(int rounds) {
    std::vector<Item> script;
    for (int i = 0; i < rounds; ++i)
        for (Phase phase : {Phase::kStore, Phase::kBarrier, Phase::kRead, Phase::kBarrier})
            script.push_back({phase, 0});
    return script;
}

std::vector<Scenario> scenarios() {
    return {
        {"one buffer, two ranks", 2, 1, false, calls({0, 0, 0, 0})},
        {"two buffers in turn, two ranks", 2, 2, false, calls({0, 1, 0, 1, 0})},
        {"odd replays and eager calls, two ranks", 2, 2, false, odd_replays()},
        {"overlapping calls, two ranks", 2, 2, false, overlapping_calls()},
        {"three buffers, two ranks", 2, 3, false, calls({0, 1, 2, 0, 2, 1})},
        {"one buffer by bulk copies, two ranks", 2, 1, true, calls({0, 0, 0})},
        {"two buffers by bulk copies, odd, two ranks", 2, 2, true, calls({0, 1, 0, 0, 1})},
        {"one buffer, three ranks", 3, 1, false, calls({0, 0, 0})},
        {"odd replays and eager calls, three ranks", 3, 2, false, odd_replays()},
        {"two buffers by bulk copies, odd, three ranks", 3, 2, true, calls({0, 1, 0, 0})},
        {"barriers, two ranks", 2, 1, false, barrier_rounds(3)},
        {"barriers with bulk copies, two ranks", 2, 1, true, barrier_rounds(2)},
        {"barriers, three ranks", 3, 1, false, barrier_rounds(2)},
    };
}

TEST(SignalProtocol, HoldsInEveryInterleaving) {
    for (const Scenario& scenario : scenarios()) {
        const checker::Result result = checker::check(scenario, {});
        EXPECT_FALSE(result.fault) << scenario.name << ": " << *result.fault;
        EXPECT_GT(result.states, scenario.script.size() * scenario.ranks) << scenario.name;
        RecordProperty(scenario.name, static_cast<int>(result.states));
    }
}

// Whatever order of buffers a captured graph or an eager caller picks.
TEST(SignalProtocol, HoldsForEverySequenceOfBuffers) {
    constexpr int kLength = 6;
    for (int bits = 0; bits < 1 << kLength; ++bits) {
        std::vector<int> buffers;
        for (int i = 0; i < kLength; ++i) buffers.push_back(bits >> i & 1);
        const checker::Result result =
            checker::check({"", 2, 2, bits % 2 == 1, calls(buffers)}, {});
        EXPECT_FALSE(result.fault) << bits << ": " << *result.fault;
    }
}

TEST(SignalProtocol, EveryMutantIsKilled) {
    std::vector<Scenario> all = scenarios();
    std::stable_sort(all.begin(), all.end(),
                     [](const Scenario& a, const Scenario& b) { return a.ranks < b.ranks; });
    const std::vector<checker::Mutant> mutants = checker::mutants();
    EXPECT_GE(mutants.size(), 20u);
    for (const checker::Mutant& mutant : mutants) {
        bool killed = false;
        for (const Scenario& scenario : all) {
            const checker::Result result = checker::check(scenario, mutant.protocol);
            if (!result.fault) continue;
            killed = true;
            RecordProperty(mutant.name, scenario.name + ": " + *result.fault);
            break;
        }
        EXPECT_TRUE(killed) << mutant.name;
    }
}

// Why credits and not turns: without credits two buffers used strictly in turn are safe, since a
// peer's signal for call n + 1 says that it has read call n; an odd captured sequence is not.
TEST(SignalProtocol, TurnsAreSafeOnlyWhileBuffersAlternate) {
    checker::Protocol turns;
    turns.begin.count = 0;
    const Scenario alternating{"", 2, 2, false, calls({0, 1, 0, 1, 0, 1})};
    EXPECT_FALSE(checker::check(alternating, turns).fault);
    const Scenario odd{"", 2, 2, false, odd_replays()};
    EXPECT_TRUE(checker::check(odd, turns).fault);
}

TEST(SignalWords, KeepEpochAndTagApart) {
    const std::uint64_t epoch = (std::uint64_t{1} << 40) - 1;
    const std::uint64_t word = protocol::pack(epoch, 0xffffffffffu);
    EXPECT_EQ(protocol::epoch_of(word), epoch);
    EXPECT_EQ(protocol::tag_of(word), 0xffffffu);
    EXPECT_LT(protocol::pack(1, 0xffffff), protocol::pack(2, 0));
}

TEST(SignalWords, FailureTravelsInOneWord) {
    const Failure f{FailureKind::kPeerLeft, SignalKind::kData, 31, 0x8005, 0xfedcba98u};
    EXPECT_EQ(Failure::decode(f.encode()), f);
    EXPECT_NE(Failure{FailureKind::kTimeout}.encode(), 0u);
}

}  // namespace
}  // namespace xstage::fabric
