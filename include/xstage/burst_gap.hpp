#pragma once

#include <algorithm>

#include "xstage/units.hpp"

namespace xstage::model {

/// The three-parameter Burst-Gap model of arXiv 2607.23264: one room, one rate, no producers.
/// Everything is in link time; `bytes` below is K * B, what all producers store in one burst.
struct BurstGap {
    Nanoseconds issue;         ///< T_iss0: to issue a burst with no backpressure
    BytesPerNanosecond drain;  ///< R: effective drain rate
    Bytes capacity;            ///< Q: bytes accepted and not yet drained
};

/// T_iss of one burst into an empty room: max(T_iss0, (V - Q) / R).
constexpr Nanoseconds isolated_issue(const BurstGap& m, Bytes bytes) {
    return std::max(m.issue, (bytes - m.capacity) / m.drain);
}

/// Steady period of equal bursts: max(T_iss0 + G, V / R). The gap hides behind the drain.
constexpr Nanoseconds period(const BurstGap& m, Bytes bytes, Nanoseconds gap) {
    return std::max(m.issue + gap, bytes / m.drain);
}

/// T_iss in steady state: max(T_iss0, V / R - G).
constexpr Nanoseconds periodic_issue(const BurstGap& m, Bytes bytes, Nanoseconds gap) {
    return std::max(m.issue, bytes / m.drain - gap);
}

/// What backpressure adds to a steady burst: [V / R - G - T_iss0]+.
constexpr Nanoseconds overhead(const BurstGap& m, Bytes bytes, Nanoseconds gap) {
    return positive_part(bytes / m.drain - gap - m.issue);
}

/// G*: the gap from which steady bursts issue freely, [V / R - T_iss0]+.
constexpr Nanoseconds recovery_gap(const BurstGap& m, Bytes bytes) {
    return positive_part(bytes / m.drain - m.issue);
}

/// Bytes in flight when a free burst has been issued: [V - R * T_iss0]+.
constexpr Bytes peak_occupancy(const BurstGap& m, Bytes bytes) {
    return positive_part(bytes - m.drain * m.issue);
}

/// Whether steady bursts never meet backpressure: the rate and the room both suffice.
constexpr bool free_of_backpressure(const BurstGap& m, Bytes bytes, Nanoseconds gap) {
    return bytes <= m.drain * (m.issue + gap) && peak_occupancy(m, bytes) <= m.capacity;
}

/// The largest isolated burst that is issued freely: the knee, Q + R * T_iss0.
constexpr Bytes knee(const BurstGap& m) {
    return m.capacity + m.drain * m.issue;
}

}  // namespace xstage::model
