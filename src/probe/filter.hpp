#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "probe/plan.hpp"

namespace xstage::probe {

/// Picks steps of a plan. One filter is a list of conditions joined by commas, all of which must
/// hold; of several filters one must. A condition is KEY=VALUE, KEY!=VALUE, or for numbers also
/// KEY<=VALUE and KEY>=VALUE (sizes as for axes). Keys: section, mode, path, target, beside,
/// addresses, both, sms, warps, bytes, gap, gap_from, destinations, engine, fence, load. A step
/// that has no such key does not meet the condition. Throws kBadInput for an unknown key or
/// operator.
class Filter {
  public:
    explicit Filter(const std::vector<std::string>& texts);
    bool accepts(const Step& step) const;

  private:
    enum class Compare { kEqual, kNotEqual, kAtMost, kAtLeast };
    struct Condition {
        std::string key;
        Compare compare = Compare::kEqual;
        std::string value;
        bool holds(const Step& step) const;
    };
    static Condition parse(std::string_view text);

    std::vector<std::vector<Condition>> any_of_;
};

}  // namespace xstage::probe
