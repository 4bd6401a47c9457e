#include "ops/bench_processes.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "xstage/error.hpp"

namespace xstage::bench {
namespace {

struct Child {
    pid_t pid;
    int pipe;
};

/// Where the child's work ends; returns its exit code and leaves its words in `text`.
int run_body(const std::function<std::string(int)>& body, int rank, std::string& text) {
    try {
        text = body(rank);
        return 0;
    } catch (const Error& e) {
        text = e.what();
        return e.exit_code();
    } catch (const std::exception& e) {
        text = e.what();
        return static_cast<int>(ErrorKind::kEnvironment);
    }
}

Child start(const std::function<std::string(int)>& body, int rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw Error(ErrorKind::kEnvironment, "no pipe for a rank");
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(ErrorKind::kEnvironment, "no process for a rank");
    if (pid > 0) {
        ::close(ends[1]);
        return {pid, ends[0]};
    }
    ::close(ends[0]);
    std::string text;
    const int status = run_body(body, rank, text);
    for (std::size_t at = 0; at < text.size();) {
        const ssize_t n = ::write(ends[1], text.data() + at, text.size() - at);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
    }
    ::_exit(status);
}

std::string finish(const Child& child, int& code) {
    std::string text;
    char block[65536];
    for (ssize_t n; (n = ::read(child.pipe, block, sizeof block)) > 0;)
        text.append(block, static_cast<std::size_t>(n));
    ::close(child.pipe);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ErrorKind::kEnvironment);
    return text;
}

}  // namespace

std::vector<std::string> in_processes(int count, const std::function<std::string(int)>& body) {
    std::vector<Child> children;
    for (int r = 0; r < count; ++r) children.push_back(start(body, r));
    std::vector<std::string> all;
    std::string failure;
    int failed = 0;
    for (const Child& child : children) {
        int code = 0;
        all.push_back(finish(child, code));
        if (code == 0 || failed != 0) continue;
        failed = code;
        failure = all.back();
    }
    if (failed != 0)
        throw Error(static_cast<ErrorKind>(failed), failure.empty() ? "a rank died" : failure);
    return all;
}

fabric::FabricOptions group_options(fabric::Backend backend, int world, int rank,
                                    const std::string& name) {
    fabric::FabricOptions o;
    o.backend = backend;
    o.world = world;
    o.rank = rank;
    o.name = name;
    o.wait_timeout = std::chrono::seconds(10);
    if (backend == fabric::Backend::kLocal) o.devices.assign(static_cast<std::size_t>(world), 0);
    return o;
}

}  // namespace xstage::bench
