// Ranks that meet over TCP, as those of several machines do.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "expect_error.hpp"
#include "fabric/rendezvous.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

using ::testing::HasSubstr;

/// A port that was free a moment ago.
std::string fresh_address(const std::string& host = "127.0.0.1") {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
        throw std::runtime_error("no port");
    return "tcp://" + host + ":" + std::to_string(ntohs(at.sin_port));
}

constexpr std::chrono::milliseconds kTimeout{20000};

TEST(TcpRendezvous, EveryRankHearsEveryPayload) {
    const std::string name = fresh_address("localhost");
    const auto errors = testing::run_threads(4, [&](int rank) {
        Rendezvous meeting(name, rank, 4, kTimeout);
        if (meeting.carries_descriptors()) throw std::runtime_error("TCP carries no descriptors");
        for (int round = 0; round < 3; ++round) {
            const auto all = meeting.agree("call", {}, std::to_string(rank * 10 + round));
            for (int r = 0; r < 4; ++r)
                if (all.at(r) != std::to_string(r * 10 + round)) throw std::runtime_error(all[r]);
        }
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(TcpRendezvous, DifferentCallsAreRefusedOnAllRanks) {
    const std::string name = fresh_address();
    const auto errors = testing::run_threads(3, [&](int rank) {
        Rendezvous meeting(name, rank, 3, kTimeout);
        meeting.agree(rank == 2 ? "other" : "call");
    });
    for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("rank 2 calls other"));
}

TEST(TcpRendezvous, EveryPeerSeesThatARankHasLeft) {
    const std::string name = fresh_address();
    const auto errors = testing::run_processes(3, [&](int rank) {
        Rendezvous meeting(name, rank, 3, kTimeout);
        if (rank == 1) return;
        // Ranks 1 and 2 are joined directly, so 2 sees it too and not only through rank 0.
        const Deadline limit = Clock::now() + kTimeout;
        while (!meeting.left(1))
            if (Clock::now() > limit) throw std::runtime_error("rank 1 seems to be there");
        if (meeting.left(rank == 0 ? 2 : 0)) throw std::runtime_error("the other one is there");
        const auto all = meeting.agree("still here");
    });
    EXPECT_EQ(errors[1], "");
    for (int r : {0, 2}) EXPECT_THAT(errors[r], HasSubstr("rank 1: its process ended"));
}

TEST(TcpRendezvous, ARankThatDoesNotComeIsNamed) {
    const std::string name = fresh_address();
    const auto errors = testing::run_threads(
        2, [&](int rank) { Rendezvous meeting(name, rank, 3, std::chrono::milliseconds(300)); });
    for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("rank 2: did not arrive"));
}

TEST(TcpRendezvous, AnAddressThatIsNoneIsRefused) {
    for (const char* name : {"tcp://", "tcp://host", "tcp://host:", "tcp://host:0", "tcp://:80",
                             "tcp://host:65536", "tcp://host:12x"})
        EXPECT_THAT(test::bad_input([&] { make_meeting_point(name); }),
                    HasSubstr("expected tcp://"));
}

}  // namespace
}  // namespace xstage::fabric
