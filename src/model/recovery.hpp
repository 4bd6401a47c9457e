#pragma once

#include <vector>

#include "model/cases.hpp"
#include "model/evaluate.hpp"

namespace xstage::model {

/// Two neighbouring recorded gaps between which a second burst stops waiting for the first.
struct RecoveryBracket {
    std::size_t path = 0;
    Load load;
    Bytes bytes;
    bool slowest = false;
    Cycles low, high;
};

/// The brackets of all sweeps of second bursts over the gap. `high` is the first gap after which
/// the second burst took at most 5% over its plateau, the median of the longest third of the gaps;
/// `low` the gap before. Sweeps of fewer than six gaps, or that have no gap before, are left out.
std::vector<RecoveryBracket> recovery_brackets(const std::vector<Case>& cases);

/// How far a profile's recovery gap lies outside each bracket, relative to the nearer end; 0
/// inside.
std::vector<ErrorSample> recovery_errors(const Profile& profile,
                                         const std::vector<RecoveryBracket>& brackets);

}  // namespace xstage::model
