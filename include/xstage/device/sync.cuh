#pragma once

// Waits that end: every loop on another CTA or GPU has a deadline on the global timer, and leaves
// behind who was missing. A start line lets all CTAs of a resident grid begin on one timer tick.

#include <cstdint>
#include <xstage/device/ptx.cuh>
#include <xstage/device/wait_report.hpp>

namespace xstage::device {

class Deadline {
  public:
    __device__ __forceinline__ explicit Deadline(std::uint64_t budget_ns)
        : end_ns_(global_ns() + budget_ns) {}
    __device__ __forceinline__ bool passed() const { return global_ns() > end_ns_; }

  private:
    std::uint64_t end_ns_;
};

/// The first reporter wins: later timeouts are mostly its consequences.
__device__ __forceinline__ void report_timeout(WaitReport* report, WaitPlace place,
                                               std::uint32_t round, std::uint32_t missing) {
    if (atomicCAS(&report->place, 0u, static_cast<std::uint32_t>(place)) == 0u) {
        report->round = round;
        report->missing = missing;
        report->waiter = blockIdx.x;
        __threadfence_system();
    }
}

/// Until *flag (this GPU's memory, written by a peer) is at least `value`. Acquires at system
/// scope. False after the deadline, with a report; `peer` is who should have written.
__device__ __forceinline__ bool wait_acquire_sys_at_least(const std::uint32_t* flag,
                                                          std::uint32_t value, Deadline deadline,
                                                          WaitReport* report, WaitPlace place,
                                                          std::uint32_t peer) {
    while (ld_acquire_sys_u32(flag) < value) {
        if (deadline.passed()) {
            report_timeout(report, place, value, peer);
            return false;
        }
    }
    return true;
}

/// Keeps the SM busy, and so its clock up, until its counter reaches `cycles`.
__device__ __forceinline__ void spin_until_cycles(std::uint64_t cycles) {
    float x = 1.0f;
    while (clock_cycles() < cycles) {
#pragma unroll
        for (int i = 0; i < 8; ++i) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));
    }
}

__device__ __forceinline__ void spin_until_ns(std::uint64_t ns) {
    float x = 1.0f;
    while (global_ns() < ns) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));
}

/// Memory of the start lines of one launch, zeroed before it: one entry per line, `arrived` per
/// CTA.
struct StartLines {
    std::uint32_t* count;
    std::uint64_t* start_ns;
    std::uint32_t* arrived;
};

/// Called by one thread per CTA of a grid that is wholly resident. Returns the tick, `lead_ns`
/// after the last arrival, at which all may start; 0 after the deadline, naming a CTA that is
/// missing.
__device__ __forceinline__ std::uint64_t meet_at_start_line(const StartLines& lines,
                                                            std::uint32_t line,
                                                            std::uint64_t lead_ns,
                                                            std::uint64_t budget_ns,
                                                            WaitReport* report) {
    st_release_gpu_u32(lines.arrived + blockIdx.x, line + 1);
    const std::uint32_t before = atom_acq_rel_gpu_add_u32(lines.count + line, 1);
    if (before + 1 == gridDim.x) {
        const std::uint64_t start = global_ns() + lead_ns;
        st_release_gpu_u64(lines.start_ns + line, start);
        return start;
    }
    const Deadline deadline(budget_ns);
    for (;;) {
        const std::uint64_t start = ld_acquire_gpu_u64(lines.start_ns + line);
        if (start != 0) return start;
        if (deadline.passed()) break;
        nanosleep(20);
    }
    std::uint32_t missing = 0;
    while (missing < gridDim.x && ld_acquire_gpu_u32(lines.arrived + missing) > line) ++missing;
    report_timeout(report, WaitPlace::kStartLine, line, missing);
    return 0;
}

}  // namespace xstage::device
