#include <fmt/format.h>

#include <cmath>

#include "model/cases.hpp"
#include "xstage/model.hpp"

namespace xstage::model {

std::vector<std::string> accounting_errors(const Measurements& measurements) {
    std::vector<std::string> errors;
    const auto line = measurements.provenance.line_rate;
    if (!line) return errors;
    const GigaHertz typical = typical_clock(measurements);
    const auto check = [&](const std::string& where, Bytes bytes, Nanoseconds time) {
        if (!(time.value() > 0)) return;
        const BytesPerNanosecond rate = bytes / time;
        if (rate <= *line) return;
        errors.push_back(fmt::format(
            "{}: {:.0f} GB/s is above the line rate of {:.0f} GB/s: an accounting error (bytes "
            "merged before the link, or not all of them counted in the time)",
            where, rate.value(), line->value()));
    };
    for (std::size_t i = 0; i < measurements.bursts.size(); ++i) {
        const BurstRow& row = measurements.bursts[i];
        if (row.target != Target::kRemote) continue;
        // Issue alone may exceed the line while rooms fill; issue and drain together may not. It
        // takes the slowest producer: by the median one's time not all bytes have left.
        const Bytes all = row.bytes_per_producer * (row.producers * row.bursts);
        const GigaHertz clock = row.clock.value_or(typical);
        const std::string where = fmt::format("bursts[{}]", i);
        if (row.fence) check(where, all, row.fence->max / clock);
        // No room holds more than a few bursts: a long sequence's issue is bound by the line too.
        if (row.bursts >= 16 && row.gap.value() == 0) check(where, all, row.total.max / clock);
    }
    for (std::size_t i = 0; i < measurements.visible.size(); ++i) {
        const VisibleRow& row = measurements.visible[i];
        check(fmt::format("visible[{}]", i), row.bytes_per_producer * row.producers, row.echo_ns);
    }
    return errors;
}

}  // namespace xstage::model
