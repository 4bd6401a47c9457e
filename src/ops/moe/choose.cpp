#include <algorithm>

#include "xstage/moe/plan.hpp"

namespace xstage::moe {
namespace {

// What one H200 does (bench/results/h200/moe.json), and one direction of its link.
constexpr double kFp8Flops = 1.0e15;
constexpr double kBf16Flops = 0.64e15;
constexpr double kLinkBytes = 370e9;

// Interleaving keeps two matrices of an expert in the cache at a time; without a link it costs up
// to this much.
constexpr double kInterleavingCosts = 1.17;

}  // namespace

plan::MoeOrder choose_order(const Problem& p) {
    plan::MoeOrder waves;  // one wave: never slower than smaller ones by more than the spread
    if (p.ranks == 1) return waves;
    // Per row. In waves the link works during Linear-2 alone; interleaved all the time.
    const double rate = p.type == Type::kFp8 ? kFp8Flops : kBf16Flops;
    const double second = 2.0 * p.hidden * p.intermediate / rate;
    const double first = 2 * second;
    const double away = 1.0 - 1.0 / p.ranks;
    const double store = away * 2.0 * p.hidden / kLinkBytes;
    const double in_waves = first + std::max(second, store);
    const double interleaved = std::max(first + second, store) * kInterleavingCosts;
    return interleaved < in_waves ? plan::MoeOrder{plan::MoeOrderKind::kLead, 0, 16, 0, 16} : waves;
}

}  // namespace xstage::moe
