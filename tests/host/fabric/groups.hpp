#pragma once

// Groups of ranks as threads, or as child processes that can be killed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/fabric.hpp"

namespace xstage::fabric::testing {

inline std::string fresh_name() {
    static std::atomic<int> count = 0;
    return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

inline FabricOptions host_options(const std::string& name, int rank, int world) {
    FabricOptions options;
    options.name = name;
    options.rank = rank;
    options.world = world;
    options.setup_timeout = std::chrono::seconds(20);
    options.wait_timeout = std::chrono::seconds(20);
    return options;
}

using Body = std::function<void(int rank)>;

/// What each rank's body threw; empty where it did not.
inline std::vector<std::string> run_threads(int world, const Body& body) {
    std::vector<std::string> errors(world);
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r)
        threads.emplace_back([&, r] {
            try {
                body(r);
            } catch (const std::exception& e) {
                errors[r] = e.what();
            }
        });
    for (std::thread& t : threads) t.join();
    return errors;
}

/// Child processes, one per rank, and a pipe from each: "@" lines are marks, the rest is the error.
class Processes {
  public:
    Processes(int world, const Body& body) {
        for (int r = 0; r < world; ++r) {
            int ends[2];
            if (::pipe(ends) != 0) throw std::runtime_error("pipe");
            const pid_t pid = ::fork();
            if (pid == 0) {
                ::close(ends[0]);
                pipe_of_child() = ends[1];
                int status = 0;
                try {
                    body(r);
                } catch (const std::exception& e) {
                    const std::string what = e.what();
                    status = ::write(ends[1], what.data(), what.size()) < 0 ? 2 : 1;
                }
                ::_exit(status);
            }
            ::close(ends[1]);
            children_.push_back({pid, ends[0], "", 0});
        }
    }
    ~Processes() {
        for (Child& c : children_) {
            if (c.pid > 0) {
                ::kill(c.pid, SIGKILL);
                ::waitpid(c.pid, nullptr, 0);
            }
            ::close(c.pipe);
        }
    }

    /// In a child: tells the parent that a point has been reached.
    static void mark() {
        if (::write(pipe_of_child(), "@", 1) != 1) ::_exit(3);
    }
    /// In the parent: waits for a child's next mark. False if it ended first.
    bool wait_mark(int rank) {
        char c = 0;
        while (::read(children_[rank].pipe, &c, 1) == 1) {
            if (c == '@') return true;
            children_[rank].error += c;
        }
        return false;
    }
    void kill(int rank) { ::kill(children_[rank].pid, SIGKILL); }

    /// Waits for the child to end; its error, "" when it ended well, "killed" when it was.
    std::string finish(int rank) {
        Child& c = children_[rank];
        char byte = 0;
        while (::read(c.pipe, &byte, 1) == 1)
            if (byte != '@') c.error += byte;
        if (c.pid > 0) ::waitpid(c.pid, &c.status, 0);
        c.pid = 0;
        if (WIFSIGNALED(c.status)) return WTERMSIG(c.status) == SIGKILL ? "killed" : "crashed";
        if (WEXITSTATUS(c.status) != 0 && c.error.empty()) return "ended with an error";
        return c.error;
    }

  private:
    struct Child {
        pid_t pid;
        int pipe;
        std::string error;
        int status;
    };
    static int& pipe_of_child() {
        static int pipe = -1;
        return pipe;
    }
    std::vector<Child> children_;
};

inline std::vector<std::string> run_processes(int world, const Body& body) {
    Processes processes(world, body);
    std::vector<std::string> errors;
    for (int r = 0; r < world; ++r) errors.push_back(processes.finish(r));
    return errors;
}

}  // namespace xstage::fabric::testing
