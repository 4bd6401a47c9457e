#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xstage::trace {

/// Writes the trace-event format that Perfetto and chrome://tracing open. Times in ns.
class ChromeTrace {
  public:
    using Arguments = std::vector<std::pair<std::string, double>>;

    /// Names a process (a GPU) or one of its tracks; tracks are shown in order of their number.
    void process(int pid, std::string_view name);
    void track(int pid, int tid, std::string_view name);
    /// A slice. Slices of one track must nest: check with well_nested().
    void slice(int pid, int tid, std::string_view name, double start_ns, double end_ns,
               const Arguments& arguments = {});
    void counter(int pid, std::string_view name, double time_ns, double value);

    /// Whether any two slices of a track are apart or one inside the other.
    bool well_nested() const;
    std::string json() const;

  private:
    struct Slice {
        int pid, tid;
        double start, end;
    };
    void add(std::string event);

    std::vector<std::string> events_;
    std::vector<Slice> slices_;
};

}  // namespace xstage::trace
