#pragma once

#include <map>
#include <optional>

#include "probe/node.hpp"
#include "xstage/units.hpp"

namespace xstage::probe {

/// Tells samples whose SM clock was not the run's clock. Cycles and nanoseconds come from the same
/// span of the same SM, so their quotient is that sample's own clock.
class ClockJudge {
  public:
    /// A timer that steps by 32 ns must see 64 steps to give the clock to about 2%.
    static constexpr Nanoseconds kShortest{2048};
    /// Further from the reference than this is another clock. Under tensor-core load the card's
    /// power limit moves the clock from launch to launch, and a row is as good as its own clock
    /// says.
    static constexpr double kTolerance = 0.03;
    static constexpr double kPowerTolerance = 0.08;

    /// `reference`: the clock the node holds while nothing but stores runs.
    explicit ClockJudge(GigaHertz reference) : reference_(reference) {}

    /// The clock it holds with this work beside the stores: tensor cores draw power and cost clock.
    void hold(Beside beside, GigaHertz reference) { held_[beside] = reference; }

    GigaHertz reference(Beside beside = Beside::kNothing) const {
        const auto held = held_.find(beside);
        return held == held_.end() ? reference_ : held->second;
    }

    /// Absent where the span is too short to tell.
    static std::optional<GigaHertz> clock(Cycles cycles, Nanoseconds span) {
        if (span < kShortest || cycles.value() <= 0) return std::nullopt;
        return cycles / span;
    }

    /// A sample of unknown clock is not shifted: the window about a sample is made long enough.
    bool shifted(std::optional<GigaHertz> clock, Beside beside = Beside::kNothing) const {
        if (!clock) return false;
        const double ratio = clock->value() / reference(beside).value();
        const double allowed = beside == Beside::kMma ? kPowerTolerance : kTolerance;
        return ratio < 1 - allowed || ratio > 1 + allowed;
    }

  private:
    GigaHertz reference_;
    std::map<Beside, GigaHertz> held_;
};

}  // namespace xstage::probe
