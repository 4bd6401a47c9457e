#include "model/fluid.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "model/order.hpp"
#include "model/pending.hpp"
#include "xstage/error.hpp"

namespace xstage::model {
namespace {
// Groups are padded to whole vectors and to the most classes that one of them has.
constexpr std::size_t kMostSlots = 3 * kMostClasses;
}  // namespace
}  // namespace xstage::model

#define XSTAGE_FLUID_LANES 2
namespace xstage::model {
namespace {
namespace any_target {
#include "model/fluid_loop.inc"
}  // namespace any_target
}  // namespace
}  // namespace xstage::model
#undef XSTAGE_FLUID_LANES

// The same loop for processors with 256-bit vectors; no fused multiply-add, so that both give the
// same numbers to the last bit.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define XSTAGE_FLUID_WIDE 1
#define XSTAGE_FLUID_LANES 4
#define XSTAGE_FLUID_MOVEMASK __builtin_ia32_movmskpd256
#pragma GCC push_options
#pragma GCC target("avx2")
namespace xstage::model {
namespace {
namespace wide {
#include "model/fluid_loop.inc"
}  // namespace wide
}  // namespace
}  // namespace xstage::model
#pragma GCC pop_options
#endif

namespace xstage::model {

FluidResult run_fluid(const FluidModel& model, std::span<const FluidBurst> bursts,
                      FluidTrace* trace, FluidDetail detail) {
    const std::size_t classes = model.classes.size();
    if (classes == 0 || classes > kMostClasses || !(model.drain > 0) || !(model.egress > 0)) {
        throw Error(ErrorKind::kBadInput,
                    "fluid model: 1 to 96 classes and positive rates expected");
    }
    FluidResult result;
    result.slowest.resize(bursts.size());
    result.median.resize(bursts.size());
    result.queued.resize(bursts.size());
    result.begun.assign(bursts.size(), std::numeric_limits<double>::infinity());
    result.drained.resize(bursts.size());
    if (trace != nullptr) trace->issue.resize(bursts.size() * classes);
    if (bursts.empty()) return result;
#ifdef XSTAGE_FLUID_WIDE
    if (__builtin_cpu_supports("avx2")) {
        wide::simulate(model, bursts, result, trace, detail);
        return result;
    }
#endif
    any_target::simulate(model, bursts, result, trace, detail);
    return result;
}

}  // namespace xstage::model
