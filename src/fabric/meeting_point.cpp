#include "fabric/meeting_point.hpp"

#include <fmt/format.h>

namespace xstage::fabric {
namespace {

class NamedSockets final : public MeetingPoint {
  public:
    explicit NamedSockets(std::string name) : name_(std::move(name)) {}

    UniqueFd listen(int rank, int backlog) override {
        return listen_at(socket_name(rank), backlog);
    }
    UniqueFd connect(int rank, Deadline deadline) override {
        return connect_to(socket_name(rank), deadline);
    }
    UniqueFd accept(int listener, Deadline deadline) override {
        return accept_from(listener, deadline);
    }
    void leave(int rank) noexcept override {
        try {
            remove_name(socket_name(rank));
        } catch (const std::exception&) {  // no memory for a name: the file stays
        }
    }
    std::string door(int) const override { return ""; }
    std::string address(int, const std::string&) const override { return ""; }
    void learn(int, const std::string&) override {}
    bool carries_descriptors() const override { return true; }

  private:
    std::string socket_name(int rank) const {
        return fmt::format("{}{}.{}", name_.front() == '/' ? "" : "xstage/", name_, rank);
    }

    std::string name_;
};

}  // namespace

bool is_tcp(const std::string& name) {
    return name.rfind("tcp://", 0) == 0;
}

std::unique_ptr<MeetingPoint> make_meeting_point(const std::string& name) {
    if (is_tcp(name)) return make_tcp_meeting_point(name);
    return std::make_unique<NamedSockets>(name);
}

}  // namespace xstage::fabric
