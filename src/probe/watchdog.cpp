#include "probe/watchdog.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

volatile sig_atomic_t g_stop_requests = 0;
volatile sig_atomic_t g_last_signal = SIGINT;

void count_request(int signal) {
    g_last_signal = signal;
    g_stop_requests = g_stop_requests + 1;
}

/// Installs count_request for SIGINT and SIGTERM and blocks both, so that they arrive only while
/// the parent waits in ppoll and none is missed between a look and a wait. Undone at the end.
class CountRequests {
  public:
    CountRequests() {
        g_stop_requests = 0;
        struct sigaction action {};
        action.sa_handler = count_request;
        sigaction(SIGINT, &action, &interrupt_);
        sigaction(SIGTERM, &action, &terminate_);
        sigset_t requests;
        sigemptyset(&requests);
        sigaddset(&requests, SIGINT);
        sigaddset(&requests, SIGTERM);
        sigprocmask(SIG_BLOCK, &requests, &before_);
    }
    ~CountRequests() {
        g_stop_requests =
            0;  // they were the child's; what this process does next is another matter
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        sigaction(SIGINT, &interrupt_, nullptr);
        sigaction(SIGTERM, &terminate_, nullptr);
    }
    const sigset_t& before() const { return before_; }

  private:
    struct sigaction interrupt_ {
    }, terminate_{};
    sigset_t before_{};
};

[[noreturn]] void child_main(const std::function<int(Heartbeat&)>& body, int pipe, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it died before the line above
    // Out of the terminal's group: Ctrl-C reaches the parent, which passes it on once.
    setpgid(0, 0);
    Heartbeat heartbeat(pipe);
    int code = 1;
    try {
        code = body(heartbeat);
    } catch (const Error& error) {
        fmt::print(stderr, "xstage: {}\n", error.what());
        code = error.exit_code();
    } catch (const std::exception& error) {
        fmt::print(stderr, "xstage: {}\n", error.what());
        code = static_cast<int>(ErrorKind::kEnvironment);
    }
    std::fflush(nullptr);
    // No destructors of static objects: a broken CUDA context may hang in them.
    _exit(code);
}

/// Reaps the child within `limit`; a process stuck in the driver cannot even be killed.
bool reap(pid_t child, milliseconds limit, int& status) {
    const auto end = Clock::now() + limit;
    for (;;) {
        const pid_t done = waitpid(child, &status, WNOHANG);
        if (done == child || (done < 0 && errno == ECHILD)) return true;
        if (Clock::now() >= end) return false;
        poll(nullptr, 0, 5);
    }
}

struct Reader {
    int fd;
    std::string buffer;
    std::string phase = "start";
    Clock::time_point deadline;

    /// False at the end of the pipe.
    bool read_some() {
        char chunk[512];
        const ssize_t n = ::read(fd, chunk, sizeof chunk);
        if (n < 0) return errno == EINTR || errno == EAGAIN;
        if (n == 0) return false;
        buffer.append(chunk, static_cast<std::size_t>(n));
        for (auto end = buffer.find('\n'); end != std::string::npos; end = buffer.find('\n')) {
            const std::string line = buffer.substr(0, end);
            buffer.erase(0, end + 1);
            const auto space = line.find(' ');
            deadline = Clock::now() + milliseconds(std::strtoll(line.c_str(), nullptr, 10));
            phase = space == std::string::npos ? "?" : line.substr(space + 1);
        }
        return true;
    }
};

}  // namespace

void Heartbeat::phase(std::string_view name, milliseconds limit) {
    std::string line = fmt::format("{} {}\n", limit.count(), name.substr(0, 200));
    std::replace(line.begin(), line.end() - 1, '\n', ' ');
    ssize_t ignored = ::write(pipe_, line.data(), line.size());
    static_cast<void>(ignored);
}

bool interrupted() {
    return g_stop_requests > 0;
}

Watched run_watched(const std::function<int(Heartbeat&)>& body, milliseconds first) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw Error(ErrorKind::kEnvironment, fmt::format("pipe: {}", std::strerror(errno)));
    }
    std::fflush(nullptr);
    const CountRequests count;
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) {
        close(ends[0]);
        close(ends[1]);
        throw Error(ErrorKind::kEnvironment, fmt::format("fork: {}", std::strerror(errno)));
    }
    if (child == 0) {
        close(ends[0]);
        sigprocmask(SIG_SETMASK, &count.before(), nullptr);
        child_main(body, ends[1], parent);
    }
    close(ends[1]);
    Reader reader{.fd = ends[0], .buffer = {}, .phase = "start", .deadline = Clock::now() + first};
    int passed_on = 0;
    Watched result;
    for (bool open = true; open;) {
        while (passed_on < g_stop_requests) {
            kill(child, ++passed_on > 1 ? SIGKILL : g_last_signal);
        }
        const auto left = std::chrono::ceil<milliseconds>(reader.deadline - Clock::now());
        if (left.count() <= 0) {
            result.timed_out = true;
            break;
        }
        pollfd ready{.fd = ends[0], .events = POLLIN, .revents = 0};
        const timespec wait{.tv_sec = left.count() / 1000,
                            .tv_nsec = left.count() % 1000 * 1'000'000};
        if (ppoll(&ready, 1, &wait, &count.before()) > 0) open = reader.read_some();
    }
    close(ends[0]);
    result.phase = reader.phase;
    int status = 0;
    if (result.timed_out) {
        kill(child, SIGKILL);
        reap(child, milliseconds(3000), status);
        result.exit_code = static_cast<int>(ErrorKind::kTimedOut);
        return result;
    }
    // The pipe is closed only when the child ends; give its last steps the last phase's time.
    const auto left = std::chrono::ceil<milliseconds>(reader.deadline - Clock::now());
    if (!reap(child, std::max(left, milliseconds(1000)), status)) {
        kill(child, SIGKILL);
        reap(child, milliseconds(3000), status);
        result.timed_out = true;
        result.exit_code = static_cast<int>(ErrorKind::kTimedOut);
        return result;
    }
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace xstage::probe
