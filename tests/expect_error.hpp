#pragma once

#include <gmock/gmock.h>

#include "xstage/error.hpp"

namespace xstage::test {

/// Runs `body` and returns the message of the Error it must throw with this kind.
template <class Body>
std::string error_of(ErrorKind kind, Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
        EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n"))) << "one line is shown";
        return error.what();
    }
    ADD_FAILURE() << "no error was thrown";
    return {};
}

template <class Body>
std::string bad_input(Body&& body) {
    return error_of(ErrorKind::kBadInput, std::forward<Body>(body));
}

}  // namespace xstage::test
