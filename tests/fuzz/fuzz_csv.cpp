#include <cstdint>

#include "core/csv.hpp"
#include "xstage/error.hpp"

// Whatever the bytes: every cell is readable as text, and as a number or an Error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace xstage;
    try {
        const auto table =
            core::CsvTable::parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
        for (std::size_t row = 0; row < table.rows(); ++row) {
            for (const auto column : table.header()) {
                try {
                    if (table.number(row, column) < 0) __builtin_trap();
                } catch (const Error&) {
                }
            }
        }
    } catch (const Error&) {
    }
    return 0;
}
