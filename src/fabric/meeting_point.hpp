#pragma once

#include <memory>
#include <string>

#include "fabric/socket.hpp"

namespace xstage::fabric {

/// Where the ranks of a group find each other: socket names on one machine, or TCP between several.
class MeetingPoint {
  public:
    virtual ~MeetingPoint() = default;

    /// Empty when somebody else listens there.
    virtual UniqueFd listen(int rank, int backlog) = 0;
    /// Empty when the rank did not listen before the deadline.
    virtual UniqueFd connect(int rank, Deadline deadline) = 0;
    /// Empty when nobody came, or nobody who may.
    virtual UniqueFd accept(int listener, Deadline deadline) = 0;
    virtual void leave(int rank) noexcept = 0;

    /// What a rank says of its listener to rank 0, what rank 0 makes of it when it sees where the
    /// rank came from, and what every rank is then told. All empty where names suffice.
    virtual std::string door(int listener) const = 0;
    virtual std::string address(int connection, const std::string& door) const = 0;
    virtual void learn(int rank, const std::string& address) = 0;

    /// Whether descriptors travel here (SCM_RIGHTS): memory can be handed over.
    virtual bool carries_descriptors() const = 0;
};

/// "tcp://host:port" is the address at which rank 0 listens; anything else names sockets. Throws
/// Error (kBadInput) for an address that is none.
std::unique_ptr<MeetingPoint> make_meeting_point(const std::string& name);
bool is_tcp(const std::string& name);

/// In tcp.cpp.
std::unique_ptr<MeetingPoint> make_tcp_meeting_point(const std::string& name);

}  // namespace xstage::fabric
