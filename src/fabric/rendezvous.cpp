#include "fabric/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace xstage::fabric {
namespace {

constexpr const char* kGreeting = "xstage fabric 2";
constexpr const char* kEnded = "its process ended or left the group";

std::string verdict_of(const Outcome& outcome, bool fatal,
                       const std::vector<std::string>& payloads) {
    std::vector<std::string> fields{outcome.ok ? "ok" : "failed",
                                    std::to_string(static_cast<int>(outcome.kind)), outcome.reason,
                                    fatal ? "fatal" : ""};
    fields.insert(fields.end(), payloads.begin(), payloads.end());
    return pack_fields(fields);
}

/// What one rank reported, or why nothing came.
struct Report {
    bool heard = false;
    Io io = Io::kTimedOut;
    std::string call;
    Outcome outcome;
    std::string payload;
};

Report parse_report(const std::string& bytes) {
    Report report;
    try {
        const std::vector<std::string> fields = unpack_fields(bytes);
        if (fields.size() != 5) return report;
        report.call = fields[0];
        report.outcome.ok = fields[1] == "ok";
        report.outcome.kind = static_cast<ErrorKind>(std::stoi(fields[2]));
        report.outcome.reason = fields[3];
        report.payload = fields[4];
        report.heard = true;
        report.io = Io::kOk;
    } catch (const std::exception&) {
        report.io = Io::kFailed;
    }
    return report;
}

}  // namespace

Rendezvous::Rendezvous(const std::string& name, int rank, int world,
                       std::chrono::milliseconds timeout)
    : name_(name), rank_(rank), world_(world), timeout_(timeout) {
    if (name.empty()) throw Error(ErrorKind::kBadInput, "a group of several ranks needs a name");
    point_ = make_meeting_point(name);
    peers_.resize(world);
    if (rank == 0) {
        meet_as_first();
    } else {
        meet_as_other();
    }
    connect_mesh();
}

Rendezvous::~Rendezvous() {
    if (listener_) point_->leave(rank_);
}

std::string Rendezvous::late(int rank, const char* what) const {
    return fmt::format("rank {}: {} within {} ms", rank, what, timeout_.count());
}

void Rendezvous::give_up(ErrorKind kind, const std::string& reason) {
    dead_ = true;
    dead_kind_ = kind;
    dead_reason_ = reason;
    throw Error(kind, reason);
}

void Rendezvous::meet_as_first() {
    const Deadline limit = deadline();
    listener_ = point_->listen(0, world_);
    if (!listener_)
        throw Error(
            ErrorKind::kEnvironment,
            fmt::format("rank 0: the name '{}' is taken; is another group using it?", name_));
    Outcome outcome;
    std::vector<std::string> addresses(world_);
    int missing = world_ - 1;
    while (missing > 0 && outcome.ok) {
        UniqueFd fd = point_->accept(listener_.get(), limit);
        if (!fd) {
            if (Clock::now() < limit) continue;
            std::string absent;
            for (int r = 1; r < world_; ++r)
                if (!peers_[r]) absent += (absent.empty() ? "" : ", ") + std::to_string(r);
            outcome = Outcome::failed(
                ErrorKind::kTimedOut,
                fmt::format("rank {}: did not arrive within {} ms", absent, timeout_.count()));
            break;
        }
        std::string hello;
        if (receive_frame(fd.get(), hello, limit) != Io::kOk) continue;  // it died while arriving
        const std::vector<std::string> fields = unpack_fields(hello);
        const int rank = fields.size() == 4 && fields[0] == kGreeting ? std::stoi(fields[1]) : -1;
        if (rank < 1 || rank >= world_ || fields[2] != std::to_string(world_)) {
            outcome = Outcome::failed(
                ErrorKind::kBadInput,
                fmt::format(
                    "a rank of another group came to '{}': it says rank {} of {}, rank 0 says {}",
                    name_, rank, fields.size() == 4 ? fields[2] : "?", world_));
            send_frame(fd.get(), verdict_of(outcome, true, {}), limit);
        } else if (peers_[rank] && !closed_by_peer(peers_[rank].get())) {
            outcome = Outcome::failed(ErrorKind::kBadInput,
                                      fmt::format("rank {}: two processes claim this rank", rank));
            send_frame(fd.get(), verdict_of(outcome, true, {}), limit);
        } else {
            if (!peers_[rank]) --missing;
            addresses[rank] = point_->address(fd.get(), fields[3]);
            peers_[rank] = std::move(fd);
        }
    }
    for (int r = 1; r < world_; ++r)
        if (peers_[r])
            send_frame(peers_[r].get(), verdict_of(outcome, true, addresses), verdict_deadline());
    if (!outcome.ok) {
        point_->leave(0);
        throw Error(outcome.kind, outcome.reason);
    }
}

void Rendezvous::meet_as_other() {
    // Listening comes before the greeting: once rank 0 has seen everybody, everybody can be
    // reached.
    if (rank_ + 1 < world_) {
        listener_ = point_->listen(rank_, world_);
        if (!listener_)
            throw Error(ErrorKind::kEnvironment,
                        fmt::format("rank {}: the name '{}' is taken; is another group using it?",
                                    rank_, name_));
    }
    peers_[0] = point_->connect(0, deadline());
    if (!peers_[0]) throw Error(ErrorKind::kTimedOut, late(0, "did not arrive"));
    const std::string hello = pack_fields(
        {kGreeting, std::to_string(rank_), std::to_string(world_), point_->door(listener_.get())});
    std::string verdict;
    Io io = send_frame(peers_[0].get(), hello, deadline());
    if (io == Io::kOk) io = receive_frame(peers_[0].get(), verdict, verdict_deadline());
    if (io == Io::kTimedOut) throw Error(ErrorKind::kTimedOut, late(0, "did not answer"));
    if (io != Io::kOk) throw Error(ErrorKind::kEnvironment, fmt::format("rank 0: {}", kEnded));
    const std::vector<std::string> addresses = settle(verdict);
    for (int r = 1; r < std::min<int>(world_, static_cast<int>(addresses.size())); ++r)
        point_->learn(r, addresses[r]);
}

void Rendezvous::connect_mesh() {
    Outcome outcome;
    const Deadline limit = deadline();
    for (int r = 1; r < rank_ && outcome.ok; ++r) {
        peers_[r] = point_->connect(r, limit);
        if (!peers_[r] || send_frame(peers_[r].get(), std::to_string(rank_), limit) != Io::kOk)
            outcome =
                Outcome::failed(ErrorKind::kEnvironment, fmt::format("cannot reach rank {}", r));
    }
    for (int i = rank_ + 1; rank_ > 0 && i < world_ && outcome.ok; ++i) {
        UniqueFd fd = point_->accept(listener_.get(), limit);
        std::string hello;
        if (!fd || receive_frame(fd.get(), hello, limit) != Io::kOk) {
            outcome = Outcome::failed(ErrorKind::kEnvironment, "a later rank did not connect");
            break;
        }
        peers_[std::stoi(hello)] = std::move(fd);
    }
    if (listener_) point_->leave(rank_);
    listener_.reset();
    agree("meet", outcome);
}

std::vector<std::string> Rendezvous::agree(const std::string& call, const Outcome& outcome,
                                           const std::string& payload) {
    if (dead_) throw Error(dead_kind_, dead_reason_);
    return rank_ == 0 ? agree_as_first(call, outcome, payload)
                      : agree_as_other(call, outcome, payload);
}

std::vector<std::string> Rendezvous::agree_as_first(const std::string& call, const Outcome& outcome,
                                                    const std::string& payload) {
    std::vector<Report> reports(world_);
    reports[0] = {true, Io::kOk, call, outcome, payload};
    const Deadline limit = deadline();
    std::vector<int> open;
    for (int r = 1; r < world_; ++r) open.push_back(r);
    while (!open.empty()) {
        std::vector<int> fds;
        for (int r : open) fds.push_back(peers_[r].get());
        const int i = wait_readable(fds, limit);
        if (i < 0) break;
        std::string bytes;
        const Io io = receive_frame(peers_[open[i]].get(), bytes, limit);
        if (io == Io::kOk) reports[open[i]] = parse_report(bytes);
        if (io != Io::kOk) reports[open[i]].io = io;
        open.erase(open.begin() + i);
    }

    // Worst first: a dead or late rank, then a failure, then a different call.
    Outcome verdict;
    bool fatal = false;
    auto add = [&](ErrorKind kind, const std::string& reason) {
        if (verdict.ok)
            verdict = Outcome::failed(kind, reason);
        else if (verdict.reason.find(reason) == std::string::npos)
            verdict.reason += "; " + reason;
    };
    for (int r = 1; r < world_; ++r) {
        if (reports[r].heard) continue;
        fatal = true;
        if (reports[r].io == Io::kTimedOut)
            add(ErrorKind::kTimedOut, late(r, "did not answer"));
        else
            add(ErrorKind::kEnvironment, fmt::format("rank {}: {}", r, kEnded));
    }
    for (int r = 0; r < world_ && !fatal; ++r)
        if (!reports[r].outcome.ok)
            add(reports[r].outcome.kind, fmt::format("rank {}: {}", r, reports[r].outcome.reason));
    if (verdict.ok) {
        const bool same = std::all_of(reports.begin(), reports.end(),
                                      [&](const Report& r) { return r.call == call; });
        for (int r = 0; r < world_ && !same; ++r)
            add(ErrorKind::kBadInput,
                fmt::format("{}rank {} calls {}", r == 0 ? "the ranks disagree: " : "", r,
                            reports[r].call));
    }
    std::vector<std::string> payloads;
    for (const Report& r : reports) payloads.push_back(r.payload);
    const std::string bytes = verdict_of(verdict, fatal, payloads);
    for (int r = 1; r < world_; ++r) send_frame(peers_[r].get(), bytes, deadline());
    return settle(bytes);
}

std::vector<std::string> Rendezvous::agree_as_other(const std::string& call, const Outcome& outcome,
                                                    const std::string& payload) {
    const std::string report =
        pack_fields({call, outcome.ok ? "ok" : "failed",
                     std::to_string(static_cast<int>(outcome.kind)), outcome.reason, payload});
    std::string verdict;
    // A verdict may be there already, when rank 0 has given this rank up: read it even so.
    const Io sent = send_frame(peers_[0].get(), report, deadline());
    const Io io =
        sent == Io::kTimedOut ? sent : receive_frame(peers_[0].get(), verdict, verdict_deadline());
    if (io == Io::kTimedOut) give_up(ErrorKind::kTimedOut, late(0, "did not answer"));
    if (io != Io::kOk) give_up(ErrorKind::kEnvironment, fmt::format("rank 0: {}", kEnded));
    return settle(verdict);
}

std::vector<std::string> Rendezvous::settle(const std::string& bytes) {
    std::vector<std::string> fields = unpack_fields(bytes);
    if (fields.size() < 4) give_up(ErrorKind::kEnvironment, "rank 0: sent no verdict");
    if (fields[0] != "ok") {
        const auto kind = static_cast<ErrorKind>(std::stoi(fields[1]));
        if (!fields[3].empty()) give_up(kind, fields[2]);
        throw Error(kind, fields[2]);
    }
    fields.erase(fields.begin(), fields.begin() + 4);
    return fields;
}

std::size_t Rendezvous::descriptor_batch() const {
    // In flight at once: this rank's own, every peer's copies, and as much again by a rank that is
    // a batch ahead; the kernel counts them against the limit too. A few are kept for the program.
    const std::size_t left = descriptors_left();
    const std::size_t usable = left > 32 ? left - 32 : 1;
    return std::clamp<std::size_t>(usable / (2 * world_ * world_), 1, kMaxDescriptors);
}

bool Rendezvous::exchange_descriptors(
    const std::vector<int>& mine, bool failed, const std::vector<std::size_t>& expected,
    const std::function<void(int peer, std::vector<UniqueFd>)>& take, Outcome& outcome) {
    const Deadline limit = deadline();
    bool all = !failed;
    auto note = [&](ErrorKind kind, const std::string& reason) {
        all = false;
        if (outcome.ok) outcome = Outcome::failed(kind, reason);
    };
    // Everyone sends before anyone receives; the socket buffers hold one message each. A peer that
    // is gone is passed over, so that the other streams stay in step for the verdict.
    for (int r = 0; r < world_; ++r) {
        if (r == rank_) continue;
        const Io io =
            send_descriptors(peers_[r].get(), failed ? std::vector<int>{} : mine, failed, limit);
        if (io != Io::kOk)
            note(ErrorKind::kEnvironment, fmt::format("cannot send memory to rank {}", r));
    }
    for (int r = 0; r < world_; ++r) {
        if (r == rank_) continue;
        std::vector<UniqueFd> received;
        bool peer_failed = false;
        const Io io = receive_descriptors(peers_[r].get(), received, peer_failed, limit);
        if (io == Io::kFailed)
            note(ErrorKind::kEnvironment,
                 fmt::format("memory of rank {} did not arrive whole (descriptor limit?)", r));
        else if (io != Io::kOk)
            note(ErrorKind::kEnvironment, fmt::format("rank {} sent no memory", r));
        else if (peer_failed)
            all = false;  // that rank says why
        else if (received.size() != expected[r])
            note(ErrorKind::kEnvironment, fmt::format("rank {} sent {} allocations, expected {}", r,
                                                      received.size(), expected[r]));
        else
            take(r, std::move(received));
    }
    return all;
}

bool Rendezvous::left(int peer) const {
    return peer != rank_ && peers_[peer] && closed_by_peer(peers_[peer].get());
}

}  // namespace xstage::fabric
