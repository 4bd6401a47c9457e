// kill -9 of a rank: the others say so within the time limit, end cleanly, and a new group can
// start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "fabric_suite.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

using testing::fresh_name;
using ::testing::HasSubstr;
using testing::host_options;
using testing::Processes;

constexpr int kRounds = 100;
constexpr int kWorld = 3;

// An error of the fabric must come well before a wait or a set-up would run out.
void expect_named_in_time(Processes& processes, int victim, int round) {
    const auto start = std::chrono::steady_clock::now();
    for (int r = 0; r < kWorld; ++r) {
        const std::string error = processes.finish(r);
        if (r == victim) {
            EXPECT_EQ(error, "killed") << "round " << round;
            continue;
        }
        EXPECT_THAT(error, HasSubstr("rank " + std::to_string(victim) + ":")) << "round " << round;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20))
        << "round " << round;
}

void expect_new_group_works(const std::string& name) {
    for (const std::string& e : testing::run_processes(kWorld, [&](int rank) {
             Fabric fabric(host_options(name, rank, kWorld));
             suite::HostOps ops;
             suite::barriers(fabric, ops, 2);
         }))
        EXPECT_EQ(e, "");
}

TEST(KilledRank, DuringAWait) {
    const std::string name = fresh_name();
    for (int round = 0; round < kRounds; ++round) {
        const int victim = round % kWorld;
        Processes processes(kWorld, [&](int rank) {
            Fabric fabric(host_options(name, rank, kWorld));
            fabric.barrier();
            Processes::mark();
            // The victim never comes to this barrier, so the others are in it or on their way.
            if (rank == victim) ::pause();
            fabric.barrier();
            fabric.synchronize();
        });
        for (int r = 0; r < kWorld; ++r) ASSERT_TRUE(processes.wait_mark(r)) << processes.finish(r);
        processes.kill(victim);
        expect_named_in_time(processes, victim, round);
        if (round % 10 == 0) expect_new_group_works(name);
    }
}

TEST(KilledRank, BetweenCalls) {
    const std::string name = fresh_name();
    for (int round = 0; round < kRounds; ++round) {
        const int victim = round % kWorld;
        // The victim dies before the others go on, which they do only once it is dead.
        int gate[2];
        ASSERT_EQ(::pipe(gate), 0);
        Processes processes(kWorld, [&](int rank) {
            ::close(gate[1]);
            Fabric fabric(host_options(name, rank, kWorld));
            suite::HostOps ops;
            suite::barriers(fabric, ops, 3);
            Processes::mark();
            char byte;
            if (::read(gate[0], &byte, 1) < 0) ::_exit(4);
            if (round % 2 == 0) {
                fabric.barrier();
                fabric.synchronize();
            } else {
                SymmetricBuffer buffer(fabric, 4096);
            }
        });
        for (int r = 0; r < kWorld; ++r) ASSERT_TRUE(processes.wait_mark(r)) << processes.finish(r);
        processes.kill(victim);
        EXPECT_EQ(processes.finish(victim), "killed");
        ::close(gate[0]);
        ::close(gate[1]);
        expect_named_in_time(processes, victim, round);
        if (round % 10 == 0) expect_new_group_works(name);
    }
}

// Killed at any moment of set-up: the others either name the victim or, where it had got through,
// find out at the next call. Nobody hangs and nobody crashes.
TEST(KilledRank, DuringSetUp) {
    const std::string name = fresh_name();
    std::mt19937 random(4242);
    for (int round = 0; round < kRounds; ++round) {
        const int victim = round % kWorld;
        Processes processes(kWorld, [&](int rank) {
            FabricOptions options = host_options(name, rank, kWorld);
            options.setup_timeout = std::chrono::milliseconds(1500);
            Processes::mark();
            Fabric fabric(options);
            SymmetricBuffer buffer(fabric, 4 * fabric.page_bytes());
            for (;;) {
                fabric.barrier();
                fabric.check();
            }
        });
        ASSERT_TRUE(processes.wait_mark(victim));
        // Spread over the few milliseconds that set-up takes.
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 8000);
        while (std::chrono::steady_clock::now() < until) {
        }
        processes.kill(victim);
        expect_named_in_time(processes, victim, round);
        if (round % 10 == 0) expect_new_group_works(name);
    }
}

}  // namespace
}  // namespace xstage::fabric
