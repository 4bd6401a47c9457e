#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace xstage::probe {

/// The child's line to its watchdog.
class Heartbeat {
  public:
    explicit Heartbeat(int pipe) : pipe_(pipe) {}

    /// "I am in `name` now and shall call again within `limit`." Never throws and never blocks for
    /// long; a watchdog that is gone is no reason to stop measuring.
    void phase(std::string_view name, std::chrono::milliseconds limit);

  private:
    int pipe_;
};

struct Watched {
    int exit_code = 0;  ///< of the child; 124 if it was killed, 128 + signal if a signal ended it
    bool timed_out = false;
    std::string phase;  ///< the last phase it told
};

/// Runs `body` in a child process and kills it when a phase outlasts its own limit: a wedged GPU
/// can block the process that uses it for ever, in ways that no thread of it can end. `first` is
/// the limit up to the first heartbeat. SIGINT and SIGTERM are passed on to the child, a second
/// SIGINT kills it. The caller must not have touched CUDA, which does not survive a fork.
Watched run_watched(const std::function<int(Heartbeat&)>& body, std::chrono::milliseconds first);

/// True in a child of run_watched once it was asked to end early.
bool interrupted();

}  // namespace xstage::probe
