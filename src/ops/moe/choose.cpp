#include <algorithm>
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
constexpr double kInterleavingCostsFp8 = 1.20;
constexpr double kInterleavingCostsBf16 = 1.36;
// With few rows an expert's weights are what takes the time, and read for both matrices at once
// they are read slower. Recorded layers gain nothing below this.
constexpr double kArithmeticOverWeights = 2;
constexpr std::int32_t kSlack = 264;  // two tiles per SM of an H200
constexpr std::int32_t kBand = 16;

}  // namespace

plan::MoeOrder choose_order(const Problem& p) {
    const plan::MoeOrder waves;  // one wave: within 7% of the best size everywhere, 0.5% on average
    if (p.ranks == 1) return waves;
    // Per row. In waves the link works during Linear-2 alone; interleaved all the time.
    const double rate = p.type == Type::kFp8 ? kFp8Flops : kBf16Flops;
    const double second = 2.0 * p.hidden * p.intermediate / rate;
    const double first = 2 * second;
    const double away = 1.0 - 1.0 / p.ranks;
    const double store = away * 2.0 * p.hidden / kLinkBytes;
    const double costs = p.type == Type::kFp8 ? kInterleavingCostsFp8 : kInterleavingCostsBf16;
    // Of a whole layer the room holds next to nothing: all of a row's bytes count.
    const plan::StoreLimits limits{kLinkBytes, 0, 0};
    const double bytes = store * kLinkBytes;
    const std::vector<plan::Candidate> candidates = {
        {"wave", {{"Linear-1", first, 0}, {"Linear-2", second, bytes}}},
        {"alternate", {{"mixed", std::max(first + second, store) * costs, 0}}}};
    if (plan::advise(candidates, 0, limits, nullptr, 0, 0).choice == 0) return waves;
    const double rows = static_cast<double>(p.max_tokens) * p.top_k;
    const double weights = 3.0 * p.local_experts() * p.hidden * p.intermediate * p.element_bytes();
    if (rows * (first + second) < kArithmeticOverWeights * weights / kMemoryBytes) return waves;
    return {plan::MoeOrderKind::kAlternate, 0, 0, kSlack, kBand};
}

}  // namespace xstage::moe
