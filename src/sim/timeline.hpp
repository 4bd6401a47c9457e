#pragma once

#include <string>
#include <vector>

#include "sim/result.hpp"
#include "trace/chrome_trace.hpp"

namespace xstage::sim {

enum class Activity { kCompute, kIssue, kStall, kDrain };

/// One box of a time line.
struct TimelineRow {
    int rank = 0;
    int producer = 0;   ///< -1: the GPU's link
    std::string track;  ///< "GPU 0 SM 3", "GPU 0 SM 3 stores", "GPU 0 link"
    double start_ns = 0, end_ns = 0;
    Activity kind = Activity::kCompute;
    Role role = Role::kTile;
};

std::string activity_name(Activity activity);

/// What the SMs `first` .. `first + count - 1` of GPU `rank` compute, issue and wait for, and when
/// its link drains, from a result that was recorded. A producer that computes while it stores has a
/// second track for its stores. Rows of one track do not overlap, but for a stall, which lies
/// inside an issue, at its end.
std::vector<TimelineRow> timeline(const Result& result, int rank, int first = 0,
                                  int count = 1 << 30);

/// All GPUs, with the bytes in flight as a counter.
trace::ChromeTrace chrome_trace(const Result& result);

/// Two time lines above each other on one time axis, as inline SVG.
std::string compare_svg(const std::string& title, const std::string& first_name,
                        const std::vector<TimelineRow>& first, const std::string& second_name,
                        const std::vector<TimelineRow>& second);

}  // namespace xstage::sim
