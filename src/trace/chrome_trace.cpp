#include "trace/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

namespace xstage::trace {
namespace {

std::string json_text(std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Times are in us in the format; three decimals keep the ns.
std::string microseconds(double ns) {
    return fmt::format("{:.3f}", ns / 1000);
}

}  // namespace

void ChromeTrace::add(std::string event) {
    events_.push_back(std::move(event));
}

void ChromeTrace::process(int pid, std::string_view name) {
    add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", pid,
                    json_text(name)));
}

void ChromeTrace::track(int pid, int tid, std::string_view name) {
    add(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                    pid, tid, json_text(name)));
    add(fmt::format(
        R"({{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}})",
        pid, tid));
}

void ChromeTrace::slice(int pid, int tid, std::string_view name, double start_ns, double end_ns,
                        const Arguments& arguments) {
    std::string args;
    for (const auto& [key, value] : arguments) {
        args += fmt::format("{}{}:{}", args.empty() ? "" : ",", json_text(key), value);
    }
    add(fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                    json_text(name), pid, tid, microseconds(start_ns),
                    microseconds(std::max(0.0, end_ns - start_ns)), args));
    slices_.push_back({pid, tid, start_ns, end_ns});
}

void ChromeTrace::counter(int pid, std::string_view name, double time_ns, double value) {
    add(fmt::format(R"({{"ph":"C","name":{0},"pid":{1},"ts":{2},"args":{{{0}:{3}}}}})",
                    json_text(name), pid, microseconds(time_ns), value));
}

bool ChromeTrace::well_nested() const {
    std::vector<Slice> sorted = slices_;
    std::sort(sorted.begin(), sorted.end(), [](const Slice& a, const Slice& b) {
        return std::tuple(a.pid, a.tid, a.start, -a.end) <
               std::tuple(b.pid, b.tid, b.start, -b.end);
    });
    // The viewer rounds to ns: what is closer than that counts as touching.
    constexpr double kTouch = 0.5;
    std::vector<Slice> open;
    for (const Slice& slice : sorted) {
        while (!open.empty() && (open.back().pid != slice.pid || open.back().tid != slice.tid ||
                                 open.back().end <= slice.start + kTouch)) {
            open.pop_back();
        }
        if (!open.empty() && slice.end > open.back().end + kTouch) return false;
        open.push_back(slice);
    }
    return true;
}

std::string ChromeTrace::json() const {
    std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    for (std::size_t i = 0; i < events_.size(); ++i) {
        out += events_[i];
        out += i + 1 < events_.size() ? ",\n" : "\n";
    }
    return out + "]}\n";
}

}  // namespace xstage::trace
