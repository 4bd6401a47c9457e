#include "probe/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace xstage::probe {

std::string Progress::duration(double ns) {
    const auto seconds = static_cast<long>(std::ceil(std::max(0.0, ns) / 1e9));
    if (seconds < 60) return fmt::format("{} s", seconds);
    return fmt::format("{} min {:02} s", seconds / 60, seconds % 60);
}

double Progress::left_ns(double done_ns, double total_ns, double elapsed_ns) {
    const double left = std::max(0.0, total_ns - done_ns);
    // Below a twentieth of the plan the pace is mostly start-up.
    if (done_ns < 0.05 * total_ns) return left;
    return left * elapsed_ns / done_ns;
}

void Progress::step(const std::string& phase, const std::string& what, double estimate_ns) {
    done_ns_ += current_ns_;
    current_ns_ = estimate_ns;
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double, std::nano>(now - begin_).count();
    const std::string left = duration(left_ns(done_ns_, total_ns_, elapsed));
    if (!terminal_) {
        if (phase != phase_) fmt::print(out_, "probe: {} ({} left)\n", phase, left);
        phase_ = phase;
        return;
    }
    phase_ = phase;
    if (now - drawn_ < std::chrono::milliseconds(50)) return;
    drawn_ = now;
    constexpr int kWidth = 24;
    const double share = total_ns_ > 0 ? std::clamp(done_ns_ / total_ns_, 0.0, 1.0) : 0;
    const int full = static_cast<int>(share * kWidth);
    fmt::print(out_, "\r\033[K[{:#<{}}{:.<{}}] {:3.0f}%  {} left  {}", "", full, "", kWidth - full,
               100 * share, left, what.substr(0, 60));
    std::fflush(out_);
}

void Progress::end() {
    const double elapsed = std::chrono::duration<double, std::nano>(Clock::now() - begin_).count();
    fmt::print(out_, "{}probe: measured in {}\n", terminal_ ? "\r\033[K" : "", duration(elapsed));
}

}  // namespace xstage::probe
