#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "temporary_directory.hpp"

namespace xstage::test {

struct CommandResult {
    int code = -1;
    std::string out, err;
};

inline std::string quoted(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

/// Runs the command line tool that this build made. Its streams are kept apart.
inline CommandResult run_xstage(const std::vector<std::string>& arguments,
                                const std::string& input = {}) {
    const TemporaryDirectory directory;
    std::string command = quoted(XSTAGE_CLI);
    for (const std::string& argument : arguments) command += " " + quoted(argument);
    command += " <" + quoted(directory.write("in", input)) + " >" + quoted(directory.file("out")) +
               " 2>" + quoted(directory.file("err"));
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            slurp(directory.file("out")), slurp(directory.file("err"))};
}

}  // namespace xstage::test
