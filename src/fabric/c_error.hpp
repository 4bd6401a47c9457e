#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "xstage/error.hpp"

namespace xstage::fabric {

/// What xstage_last_error() returns on this thread.
std::string& last_error();

/// Runs `f`, keeps the words of what it throws for xstage_last_error(), and returns its number.
template <class F>
int guarded(F&& f) noexcept {
    try {
        f();
        return 0;
    } catch (const Error& e) {
        try {
            last_error() = e.what();
        } catch (...) {
        }
        return e.exit_code();
    } catch (const std::exception& e) {
        try {
            last_error() = e.what();
        } catch (...) {
        }
        return static_cast<int>(ErrorKind::kEnvironment);
    } catch (...) {
        return static_cast<int>(ErrorKind::kEnvironment);
    }
}

/// The options of a caller of this version or an older one, whose struct is shorter: what it does
/// not have is 0. Throws Error (kBadInput).
template <class Options>
Options sized(const Options* given) {
    if (given == nullptr) throw Error(ErrorKind::kBadInput, "options must not be NULL");
    if (given->struct_size < sizeof(std::size_t) || given->struct_size > sizeof *given)
        throw Error(ErrorKind::kBadInput,
                    "options have a struct_size that this version does not know");
    Options copy{};
    std::memcpy(&copy, given, given->struct_size);
    return copy;
}

}  // namespace xstage::fabric
