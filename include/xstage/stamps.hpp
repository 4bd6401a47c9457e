#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "xstage/measurement.hpp"
#include "xstage/stamp_layout.hpp"

namespace xstage {

/// The bursts of a stamp buffer, copied to the host, in the order of their start. Slots never
/// written are left out. Starts are counted from the earliest; the clock is each burst's own where
/// it lasted long enough to tell (2 us), else that of its producer over all its bursts. Throws
/// kBadInput for a slot that ends before it starts, which is no stamp.
std::vector<UserBurst> read_stamps(std::span<const Stamp> slots);

/// A measurement document of these bursts alone, for `xstage predict` and `xstage report`. Stamps
/// that found no room are counted in the warnings. `gpus` may be left empty by callers that do not
/// know.
Measurements stamp_document(std::span<const Stamp> slots, std::uint32_t dropped,
                            Provenance provenance);

/// Writes stamp_document as JSON, in one step; "-" is standard output.
void write_stamp_document(const std::string& path, std::span<const Stamp> slots,
                          std::uint32_t dropped, Provenance provenance);

}  // namespace xstage
