#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/meeting_point.hpp"
#include "fabric/socket.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {

/// How a step went on this rank, before the others have been heard.
struct Outcome {
    bool ok = true;
    ErrorKind kind = ErrorKind::kEnvironment;
    std::string reason;

    static Outcome failed(ErrorKind kind, std::string reason) {
        return {false, kind, std::move(reason)};
    }
};

/// Sockets from every rank to every other, and agreement over them: rank 0 hears how a step went on
/// each rank and sends one verdict to all, so that all go on or all throw the same error.
class Rendezvous {
  public:
    /// Meets the other ranks. Throws Error (kTimedOut, kEnvironment, kBadInput) naming the rank.
    Rendezvous(const std::string& name, int rank, int world, std::chrono::milliseconds timeout);
    ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    int rank() const { return rank_; }
    int world() const { return world_; }
    bool carries_descriptors() const { return point_->carries_descriptors(); }

    /// Every rank says which call it is in and how that went; every rank gets everyone's payload.
    /// Throws the same Error on all ranks when one failed, died, is late or is in another call.
    std::vector<std::string> agree(const std::string& call, const Outcome& outcome = {},
                                   const std::string& payload = {});

    /// Descriptors one may send to every peer at once without running anybody out of them.
    std::size_t descriptor_batch() const;

    /// Sends the same descriptors to every peer, then takes `expected[p]` from each peer p. A rank
    /// that failed sends none. False when a peer failed or the transfer broke; the next agree says
    /// why.
    bool exchange_descriptors(const std::vector<int>& mine, bool failed,
                              const std::vector<std::size_t>& expected,
                              const std::function<void(int peer, std::vector<UniqueFd>)>& take,
                              Outcome& outcome);

    /// True when the rank's process has ended or it has closed the group.
    bool left(int peer) const;

  private:
    void meet_as_first();
    void meet_as_other();
    void connect_mesh();
    std::vector<std::string> agree_as_first(const std::string& call, const Outcome& outcome,
                                            const std::string& payload);
    std::vector<std::string> agree_as_other(const std::string& call, const Outcome& outcome,
                                            const std::string& payload);
    std::vector<std::string> settle(const std::string& verdict);
    Deadline deadline() const { return Clock::now() + timeout_; }
    /// The others wait a little longer than rank 0, so that its verdict reaches them.
    Deadline verdict_deadline() const {
        return deadline() + timeout_ / 4 + std::chrono::seconds(1);
    }
    std::string late(int rank, const char* what) const;
    [[noreturn]] void give_up(ErrorKind kind, const std::string& reason);

    std::string name_;
    std::unique_ptr<MeetingPoint> point_;
    int rank_;
    int world_;
    std::chrono::milliseconds timeout_;
    UniqueFd listener_;
    std::vector<UniqueFd> peers_;
    bool dead_ = false;
    ErrorKind dead_kind_ = ErrorKind::kEnvironment;
    std::string dead_reason_;
};

}  // namespace xstage::fabric
