#include <vector>

#include "plan/advisor.hpp"
#include "xstage/moe/plan.hpp"

namespace xstage::moe {
namespace {

// What one H200 does (bench/results/h200/moe.json), and one direction of its link.
constexpr double kFp8Flops = 1.0e15;
constexpr double kBf16Flops = 0.64e15;
constexpr double kLinkBytes = 370e9;
constexpr double kMemoryBytes = 4.2e12;

// Interleaving keeps two matrices of an expert in the cache at a time. On one GPU, where it has
// nothing to give, it costs at most this much in the recorded grid.
constexpr double kInterleavingCostsFp8 = 1.22;
constexpr double kInterleavingCostsBf16 = 1.15;
// With few rows an expert's weights are what takes the time, and read for both matrices at once
// they are read slower. Recorded layers gain nothing below this.
constexpr double kArithmeticOverWeights = 2;
// Less than this is within the spread of recorded calls.
constexpr double kLeastGainSeconds = 10e-6;
// Two tiles per SM of an H200, or one pair.
constexpr plan::MoeOrder kInterleavedFp8{plan::MoeOrderKind::kAlternate, 0, 0, 264, 16, 1};
constexpr plan::MoeOrder kInterleavedBf16{plan::MoeOrderKind::kAlternate, 0, 0, 132, 8, 2};

// Two CTAs that share an expert's weights were faster in bf16 where experts get two or three blocks
// (one that has but one leaves a CTA idle), and up to eight where an expert's weights exceed the
// cache; never in FP8, whose CTAs take half as many bytes.
constexpr double kLeastPairRows = 112;
constexpr double kMostPairRows = 320;
constexpr double kMostPairRowsWide = 1024;
constexpr double kWideBytes = 80e6;
// Few experts, many of which have one block, are too few pairs for the CTAs.
constexpr double kSurePairRows = 192;
constexpr int kLeastPairTiles = 256;

bool pairs_pay(const Problem& p) {
    if (p.type != Type::kBf16) return false;
    const double rows = static_cast<double>(p.max_tokens) * p.ranks * p.top_k / p.experts;
    const double weights = 3.0 * p.hidden * p.intermediate * p.element_bytes();
    const std::int64_t tiles = std::int64_t{p.local_experts()} * p.intermediate / 128;
    return rows >= (tiles < kLeastPairTiles ? kSurePairRows : kLeastPairRows) &&
           rows <= (weights > kWideBytes ? kMostPairRowsWide : kMostPairRows);
}

}  // namespace

plan::MoeOrder choose_order(const Problem& p) {
    plan::MoeOrder waves;  // one wave: within 7% of the best size everywhere, 0.3% on average
    waves.ctas = pairs_pay(p) ? 2 : 1;
    if (p.ranks == 1) return waves;
    // Per row. In waves the link works during Linear-2 alone; interleaved all the time.
    const double rate = p.type == Type::kFp8 ? kFp8Flops : kBf16Flops;
    const double second = 2.0 * p.hidden * p.intermediate / rate;
    const double first = 2 * second;
    const double away = 1.0 - 1.0 / p.ranks;
    const double store = away * 2.0 * p.hidden / kLinkBytes;
    const double costs = p.type == Type::kFp8 ? kInterleavingCostsFp8 : kInterleavingCostsBf16;
    // What `xstage advise` ranks by, in seconds. A layer's stores are far more than the room holds.
    const plan::StoreLimits limits{kLinkBytes, 0, 0};
    const double bytes = store * kLinkBytes;
    const auto time = [&](const std::vector<plan::Phase>& phases) {
        return plan::estimate(phases, limits).total_ns;
    };
    const double in_waves = time({{"Linear-1", first, 0}, {"Linear-2", second, bytes}});
    const double rows = static_cast<double>(p.max_tokens) * p.top_k;
    const double gain = in_waves - time({{"mixed", first + second, bytes}}) * costs;
    if (rows * gain < kLeastGainSeconds) return waves;
    const double weights = 3.0 * p.local_experts() * p.hidden * p.intermediate * p.element_bytes();
    if (rows * (first + second) < kArithmeticOverWeights * weights / kMemoryBytes) return waves;
    return p.type == Type::kFp8 ? kInterleavedFp8 : kInterleavedBf16;
}

}  // namespace xstage::moe
