#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "probe/watchdog.hpp"
#include "xstage/error.hpp"

namespace xstage::probe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Watchdog, TheChildsExitCodeComesBack) {
    const Watched watched = run_watched(
        [](Heartbeat& heartbeat) {
            heartbeat.phase("isolated", seconds(30));
            return 3;
        },
        seconds(30));
    EXPECT_EQ(watched.exit_code, 3);
    EXPECT_FALSE(watched.timed_out);
    EXPECT_EQ(watched.phase, "isolated");
}

TEST(Watchdog, AHangingPhaseIsKilledAndNamed) {
    const Watched watched = run_watched(
        [](Heartbeat& heartbeat) -> int {
            heartbeat.phase("self-test", seconds(30));
            heartbeat.phase("gap2 at 132 SMs", milliseconds(50));
            signal(SIGTERM, SIG_IGN);  // as deaf as a process that waits in a driver
            for (;;) pause();
        },
        seconds(30));
    EXPECT_TRUE(watched.timed_out);
    EXPECT_EQ(watched.exit_code, 124);
    EXPECT_EQ(watched.phase, "gap2 at 132 SMs");
}

TEST(Watchdog, AChildThatNeverSpeaksIsKilledAtTheFirstLimit) {
    const Watched watched = run_watched(
        [](Heartbeat&) -> int {
            for (;;) pause();
        },
        milliseconds(50));
    EXPECT_EQ(watched.exit_code, 124);
    EXPECT_EQ(watched.phase, "start");
}

TEST(Watchdog, AHungPhaseAfterThePipeIsClosedIsStillBounded) {
    const Watched watched = run_watched(
        [](Heartbeat& heartbeat) -> int {
            heartbeat.phase("end", milliseconds(50));
            for (int fd = 3; fd < 64; ++fd) close(fd);
            for (;;) pause();
        },
        seconds(30));
    EXPECT_TRUE(watched.timed_out);
    EXPECT_EQ(watched.phase, "end");
}

TEST(Watchdog, ErrorsOfTheChildBecomeTheirExitCodes) {
    testing::internal::CaptureStderr();
    const Watched watched =
        run_watched([](Heartbeat&) -> int { throw Error(ErrorKind::kUnsupported, "no GPU here"); },
                    seconds(30));
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(watched.exit_code, 3);
}

TEST(Watchdog, ACrashIsNoTimeout) {
    const Watched watched = run_watched(
        [](Heartbeat&) -> int {
            raise(SIGKILL);
            return 0;
        },
        seconds(30));
    EXPECT_FALSE(watched.timed_out);
    EXPECT_EQ(watched.exit_code, 128 + SIGKILL);
}

TEST(Watchdog, AnInterruptReachesTheChildWhichEndsByItself) {
    const Watched watched = run_watched(
        [](Heartbeat& heartbeat) {
            sigset_t blocked, before;
            sigemptyset(&blocked);
            sigaddset(&blocked, SIGINT);
            sigprocmask(SIG_BLOCK, &blocked, &before);
            kill(getppid(), SIGINT);
            while (!interrupted()) sigsuspend(&before);
            heartbeat.phase("saving", seconds(30));
            return 130;
        },
        seconds(30));
    EXPECT_EQ(watched.exit_code, 130);
    EXPECT_EQ(watched.phase, "saving");
}

}  // namespace
}  // namespace xstage::probe
