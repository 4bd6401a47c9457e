#pragma once

#include <stdexcept>
#include <string>

namespace xstage {

/// What went wrong, as the command line's exit codes tell it apart.
enum class ErrorKind {
    kCheckFailed = 1,  ///< a check that was asked for did not hold
    kBadInput = 2,     ///< usage, a file or a value that is not what was expected
    kUnsupported = 3,  ///< this machine cannot do it; the message says what is missing
    kEnvironment = 4,  ///< the driver or the fabric is broken or not ready
    kTimedOut = 124,   ///< a bounded wait ran out
};

/// The exception of every layer. what() is one line, fit to be shown to a user as it is.
class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

    ErrorKind kind() const noexcept { return kind_; }
    int exit_code() const noexcept { return static_cast<int>(kind_); }

  private:
    ErrorKind kind_;
};

}  // namespace xstage
