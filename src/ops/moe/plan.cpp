#include "xstage/moe/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

void check_problem(const Problem& p) {
    const auto multiple = [](const char* what, int value, int of) {
        if (value < of || value % of != 0)
            bad(fmt::format("{} is {}: it must be a positive multiple of {}", what, value, of));
    };
    if (p.ranks < 1 || p.ranks > 16) bad(fmt::format("ranks is {}: 1 to 16 work", p.ranks));
    if (p.max_tokens < 1) bad(fmt::format("max_tokens is {}: at least 1", p.max_tokens));
    multiple("hidden", p.hidden, kTileColumns);
    multiple("intermediate", p.intermediate, kTileRows);
    multiple("experts", p.experts, p.ranks);
    const int shared = p.shared ? 1 : 0;
    if (p.experts > kMaxExperts - shared)
        bad(fmt::format("experts is {}: at most {}", p.experts, kMaxExperts - shared));
    if (p.top_k < 1 || p.top_k > kMaxTopK - shared)
        bad(fmt::format("top_k is {}: 1 to {}", p.top_k, kMaxTopK - shared));
    if (!(p.clamp >= 0)) bad(fmt::format("clamp is {}: it must not be negative", p.clamp));
    // A route (token * slots + slot) travels in 28 bits beside its rank; rows are counted in int32.
    const std::int64_t routes = std::int64_t{p.max_tokens} * p.slots();
    if (routes >= std::int64_t{1} << 28)
        bad(fmt::format("max_tokens * slots is {}: it must be below 2^28", routes));
    if (routes * p.ranks + std::int64_t{p.experts} * kTileRows >= std::int64_t{1} << 31)
        bad(fmt::format("{} routes of {} ranks: their rows must be below 2^31", routes, p.ranks));
    for (const int width : {p.hidden, 2 * p.intermediate})
        if (std::int64_t{p.held_experts()} * width >= std::int64_t{1} << 31)
            bad(fmt::format("{} experts of {} columns: their rows must be below 2^31",
                            p.held_experts(), width));
}

/// Lays regions one behind the other.
class Regions {
  public:
    std::int64_t add(std::int64_t bytes) {
        const std::int64_t at = end_;
        end_ += (bytes + kAlign - 1) / kAlign * kAlign;
        return at;
    }
    std::int64_t end() const { return end_; }

  private:
    static constexpr std::int64_t kAlign = 1024;
    std::int64_t end_ = 0;
};

int number_in(const std::string& text, const std::string& digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value < 0)
        bad(fmt::format("'{}' is not an order: '{}' is not a count", text, digits));
    return value;
}

}  // namespace

std::int32_t least_ring(const Problem& p, const plan::MoeOrder& order) {
    const std::int64_t rows =
        (std::int64_t{p.ranks} * p.top_k + (p.shared ? 1 : 0)) * std::int64_t{p.max_tokens};
    const auto all = static_cast<std::int32_t>(
        (rows + std::int64_t{p.held_experts()} * (kTileRows - 1)) / kTileRows);
    // A pair's blocks may lie on both sides of the ring's end, so pairs take no ring.
    const bool ring = order.kind == plan::MoeOrderKind::kLead && order.ctas == 1;
    return ring ? std::min(all, plan::least_ring(order)) : all;
}

Layout make_layout(const Problem& p, const Options& o) {
    check_problem(p);
    Layout at{};
    Regions regions;
    const std::int64_t t = p.max_tokens;
    const std::int64_t k = p.top_k;
    const std::int64_t local = p.local_experts();
    const bool scaled = p.type == Type::kFp8;
    at.x = regions.add(t * p.hidden * p.element_bytes());
    at.x_scale = regions.add(scaled ? t * (p.hidden / kScaleGroup) * 4 : 0);
    at.experts = regions.add(t * k * 4);
    at.weights = regions.add(t * k * 4);
    at.sorted = regions.add(t * k * 4);
    at.arrived = regions.add(p.ranks * (local + 1) * 4);
    at.combine = regions.add(t * p.slots() * p.hidden * 2);

    at.max_blocks = least_ring(p, {});
    at.ring_blocks = o.ring_blocks == 0 ? at.max_blocks : std::min(o.ring_blocks, at.max_blocks);
    check_order(p, at, o.order);
    const std::int64_t pool = std::int64_t{at.ring_blocks} * kTileRows;
    at.pool_x = regions.add(pool * p.hidden * p.element_bytes());
    at.pool_x_scale = regions.add(scaled ? pool * (p.hidden / kScaleGroup) * 4 : 0);
    at.act = regions.add(pool * p.intermediate * p.element_bytes());
    at.act_scale = regions.add(scaled ? pool * (p.intermediate / kScaleGroup) * 4 : 0);
    at.row_weight = regions.add(pool * 4);
    at.row_route = regions.add(pool * 4);
    at.row_begin = regions.add((std::int64_t{p.held_experts()} + 1) * 4);
    at.row_count = regions.add(std::int64_t{p.held_experts()} * 4);
    at.pair_begin = regions.add((std::int64_t{p.held_experts()} + 1) * 4);
    at.pulled = regions.add(std::int64_t{at.max_blocks} * 4);
    at.first_done = regions.add(std::int64_t{at.max_blocks} * 4);
    at.second_done = regions.add(std::int64_t{at.max_blocks} * 4);
    at.sent = regions.add(std::int64_t{p.experts} * 4);
    at.control = regions.add(64);
    at.bytes = regions.end();
    if (o.workspace_limit != 0 && at.bytes > static_cast<std::int64_t>(o.workspace_limit))
        bad(fmt::format(
            "the layer needs {} bytes of workspace per rank, the limit is {}; a smaller "
            "max_tokens or the order lead with a ring of {} blocks needs less",
            at.bytes, o.workspace_limit, least_ring(p, {plan::MoeOrderKind::kLead, 0, 8, 0})));
    return at;
}

std::size_t workspace_bytes(const Problem& problem, const Options& options) {
    return static_cast<std::size_t>(make_layout(problem, options).bytes);
}

void check_order(const Problem& p, const Layout& at, const plan::MoeOrder& order) {
    if (order.wave < 0 || order.lead < 0 || order.slack < 0 || order.band < 0)
        bad(fmt::format("order {}: counts must not be negative", name_of(order)));
    if (order.ctas != 1 && order.ctas != 2)
        bad(fmt::format("order {}: one CTA does a tile, or two do two", name_of(order)));
    if (order.kind == plan::MoeOrderKind::kLead && order.lead < 1)
        bad("order lead: the lead is at least 1");
    const std::int32_t least = least_ring(p, order);
    if (at.ring_blocks < least)
        bad(fmt::format("order {} needs a ring of {} blocks, this one has {}", name_of(order),
                        least, at.ring_blocks));
}

plan::MoeOrder parse_order(const std::string& text) {
    plan::MoeOrder order;
    std::string head = text;
    if (const auto star = head.find('*'); star != std::string::npos) {
        order.ctas = number_in(text, head.substr(star + 1));
        if (order.ctas != 1 && order.ctas != 2)
            bad(fmt::format("'{}': one CTA does a tile, or two (*2) do two", text));
        head.resize(star);
    }
    if (const auto slash = head.find('/'); slash != std::string::npos) {
        order.band = number_in(text, head.substr(slash + 1));
        if (order.band == 0) bad(fmt::format("'{}': a band has at least one row", text));
        head.resize(slash);
    }
    if (const auto plus = head.find('+'); plus != std::string::npos) {
        order.slack = number_in(text, head.substr(plus + 1));
        head.resize(plus);
    }
    std::string argument;
    if (const auto colon = head.find(':'); colon != std::string::npos) {
        argument = head.substr(colon + 1);
        head.resize(colon);
    }
    if (head == "wave") {
        order.kind = plan::MoeOrderKind::kWave;
        order.wave = argument == "all" ? 0 : number_in(text, argument);
        if (argument != "all" && order.wave == 0) bad("order wave: a wave has at least one expert");
    } else if (head == "lead") {
        order.kind = plan::MoeOrderKind::kLead;
        order.lead = number_in(text, argument);
        if (order.lead == 0) bad("order lead: the lead is at least 1");
    } else if (head == "alternate" && argument.empty()) {
        order.kind = plan::MoeOrderKind::kAlternate;
    } else if (head == "ratio" && argument.empty()) {
        order.kind = plan::MoeOrderKind::kRatio;
    } else {
        bad(
            fmt::format("'{}' is not an order: wave:N, wave:all, alternate, lead:N or ratio, "
                        "perhaps with +SLACK, /BAND or *2",
                        text));
    }
    if (order.slack != 0 && (head == "wave" || head == "lead"))
        bad(fmt::format("'{}': only alternate and ratio take a slack", text));
    return order;
}

std::string name_of(const plan::MoeOrder& order) {
    std::string name;
    switch (order.kind) {
        case plan::MoeOrderKind::kWave:
            name = order.wave == 0 ? "wave:all" : fmt::format("wave:{}", order.wave);
            break;
        case plan::MoeOrderKind::kAlternate:
            name = "alternate";
            break;
        case plan::MoeOrderKind::kLead:
            name = fmt::format("lead:{}", order.lead);
            break;
        case plan::MoeOrderKind::kRatio:
            name = "ratio";
            break;
    }
    if (order.slack != 0) name += fmt::format("+{}", order.slack);
    if (order.band > 1) name += fmt::format("/{}", order.band);
    if (order.ctas > 1) name += fmt::format("*{}", order.ctas);
    return name;
}

}  // namespace xstage::moe
