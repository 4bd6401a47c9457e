#pragma once

#include <cstdint>

namespace xstage::device {

/// Where a bounded wait ran out.
enum class WaitPlace : std::uint32_t {
    kNone = 0,
    kStartLine,  ///< another CTA of the same grid did not arrive; `missing` is its index
    kFlag,       ///< the reader saw no flag from the sender
    kEcho,       ///< the sender saw no answer from the reader
    kChecked,    ///< the reader did not finish checking
    kCredit,     ///< the reader did not free a message slot
    kStop,       ///< nobody told a background kernel to stop
};

/// Left in the waiting GPU's memory; `place` is kNone while every wait was met.
struct WaitReport {
    std::uint32_t place;
    std::uint32_t round;
    std::uint32_t missing;  ///< CTA index, message channel or rank, by place
    std::uint32_t waiter;   ///< CTA that waited
};

}  // namespace xstage::device
