#pragma once

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

}  // namespace xstage::fabric
