#include <cstdint>

#include "core/json.hpp"
#include "trace/measurement_json.hpp"
#include "xstage/error.hpp"

// Whatever the bytes: a document is read and comes back as it was, or Error says why not.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace xstage;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    core::Json document;
    try {
        document = core::parse_json(text, "fuzz");
    } catch (const Error&) {
        return 0;
    }
    try {
        const core::Json once = trace::to_json(trace::measurements_from_json(document, "fuzz"));
        const core::Json twice = trace::to_json(trace::measurements_from_json(once, "fuzz"));
        if (once != twice) __builtin_trap();
    } catch (const Error&) {
    }
    try {
        core::validate(document, "scenario", "fuzz");
    } catch (const Error&) {
    }
    return 0;
}
