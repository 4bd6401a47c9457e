#pragma once

#include <optional>
#include <string>

#include "xstage/units.hpp"

namespace xstage::probe {

/// Tells samples whose SM clock was not the run's clock. Cycles and nanoseconds come from the same
/// span of the same SM, so their quotient is that sample's own clock.
class ClockJudge {
  public:
    /// A timer that steps by 32 ns must see 64 steps to give the clock to about 2%.
    static constexpr Nanoseconds kShortest{2048};
    /// Further from the reference than this is another clock.
    static constexpr double kTolerance = 0.02;

    explicit ClockJudge(GigaHertz reference) : reference_(reference) {}

    GigaHertz reference() const { return reference_; }

    /// Absent where the span is too short to tell.
    static std::optional<GigaHertz> clock(Cycles cycles, Nanoseconds span) {
        if (span < kShortest || cycles.value() <= 0) return std::nullopt;
        return cycles / span;
    }

    /// A sample of unknown clock is not shifted: the window about a sample is made long enough.
    bool shifted(std::optional<GigaHertz> clock) const {
        if (!clock) return false;
        const double ratio = clock->value() / reference_.value();
        return ratio < 1 - kTolerance || ratio > 1 + kTolerance;
    }

  private:
    GigaHertz reference_;
};

}  // namespace xstage::probe
