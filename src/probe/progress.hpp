#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace xstage::probe {

/// Progress on standard error: a bar with the time left on a terminal, a line per phase elsewhere.
class Progress {
  public:
    /// `total_ns`: the plan's estimate, corrected by the pace so far as the run goes on.
    Progress(double total_ns, bool terminal, std::FILE* out)
        : total_ns_(total_ns), terminal_(terminal), out_(out) {}

    void step(const std::string& phase, const std::string& what, double estimate_ns);
    void end();

    /// "12 s" or "2 min 05 s".
    static std::string duration(double ns);
    /// Time left, from the estimate of what is left and the pace so far.
    static double left_ns(double done_ns, double total_ns, double elapsed_ns);

  private:
    using Clock = std::chrono::steady_clock;
    double total_ns_;
    bool terminal_;
    std::FILE* out_;
    double done_ns_ = 0;
    double current_ns_ = 0;
    std::string phase_;
    Clock::time_point begin_ = Clock::now();
    Clock::time_point drawn_{};
};

}  // namespace xstage::probe
