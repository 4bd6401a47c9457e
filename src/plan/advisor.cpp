#include "plan/advisor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "xstage/error.hpp"

namespace xstage::plan {
namespace {

std::string size_text(double bytes) {
    return bytes >= 1e6 ? fmt::format("{:.1f} MB", bytes / 1e6)
                        : fmt::format("{:.0f} KB", bytes / 1e3);
}

std::string time_text(double ns) {
    return ns >= 1e6 ? fmt::format("{:.1f} ms", ns / 1e6)
                     : fmt::format("{:.{}f} us", ns / 1e3, ns >= 1e4 ? 0 : 1);
}

/// The sentence: what the worst phase of the slower order does to the room, and what would help.
std::string reason_of(const Candidate& choice, const Candidate& baseline, const Estimate& chosen,
                      const Estimate& base, const StoreLimits& limits) {
    if (&choice == &baseline) {
        if (base.worst < 0 && base.tail_ns <= 0) {
            return fmt::format(
                "No phase of {} exceeds the room of {}, so no other order has a stall to "
                "take away.",
                baseline.name, size_text(limits.room));
        }
        return fmt::format("No other order stores with fewer stalls than {}.", baseline.name);
    }
    if (choice.buffered && base.worst >= 0) {
        const Phase& phase = baseline.phases[static_cast<std::size_t>(base.worst)];
        return fmt::format(
            "{} bursts of {} in {} exceed the room of {} at {:.0f} GB/s; with {} the SMs that "
            "compute never wait for the link.",
            phase.name, size_text(phase.bytes), time_text(phase.compute_ns), size_text(limits.room),
            limits.rate, choice.name);
    }
    if (base.worst >= 0) {
        const Phase& phase = baseline.phases[static_cast<std::size_t>(base.worst)];
        const double gap = phase.bytes / limits.rate - phase.compute_ns;
        return fmt::format(
            "{} bursts of {} in {} exceed the room of {} at {:.0f} GB/s; a gap of {} would "
            "hide the drain, and {} {}.",
            phase.name, size_text(phase.bytes), time_text(phase.compute_ns), size_text(limits.room),
            limits.rate, time_text(std::max(0.0, gap)), choice.name,
            chosen.stall_ns < base.stall_ns ? "puts computation there"
                                            : "ends with less in flight");
    }
    if (chosen.tail_ns < base.tail_ns) {
        return fmt::format(
            "No phase stalls; {} leaves {} in flight after the last computation, {} leaves {}.",
            baseline.name, size_text(base.tail_ns * limits.rate), choice.name,
            size_text(chosen.tail_ns * limits.rate));
    }
    return fmt::format(
        "No phase of either order exceeds the room of {}; {} has fewer idle SMs where its "
        "phases end.",
        size_text(limits.room), choice.name);
}

}  // namespace

Estimate estimate(const std::vector<Phase>& phases, const StoreLimits& limits) {
    Estimate out;
    double queued = 0;
    for (std::size_t i = 0; i < phases.size(); ++i) {
        const Phase& phase = phases[i];
        const double drained = (phase.bytes + queued - limits.room) / limits.rate;
        const double time = std::max(phase.compute_ns, phase.bytes > 0 ? drained : 0.0);
        const double stall = time - phase.compute_ns;
        queued = std::max(0.0, queued + phase.bytes - limits.rate * time);
        out.peak_bytes = std::max(out.peak_bytes, queued);
        out.total_ns += time;
        out.stall_ns += stall;
        if (stall > out.worst_stall_ns) {
            out.worst = static_cast<int>(i);
            out.worst_stall_ns = stall;
        }
    }
    out.tail_ns = queued / limits.rate;
    out.total_ns += out.tail_ns + limits.tail_ns;
    return out;
}

StoreLimits limits_for(const Candidate& candidate, const StoreLimits& limits) {
    StoreLimits own = limits;
    if (candidate.rate > 0) own.rate = std::min(own.rate, candidate.rate);
    if (candidate.buffered) own.room = std::numeric_limits<double>::infinity();
    return own;
}

Advice advise(const std::vector<Candidate>& candidates, int baseline, const StoreLimits& limits,
              const Simulate& simulate, int finalists, double tie) {
    if (candidates.empty()) throw Error(ErrorKind::kBadInput, "no order to choose from");
    Advice advice;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const StoreLimits own = limits_for(candidates[i], limits);
        advice.ranked.push_back({static_cast<int>(i), estimate(candidates[i].phases, own), -1});
    }
    const auto base_form = advice.ranked[static_cast<std::size_t>(baseline)].closed_form;
    std::stable_sort(advice.ranked.begin(), advice.ranked.end(),
                     [](const Ranked& a, const Ranked& b) {
                         return a.closed_form.total_ns < b.closed_form.total_ns;
                     });
    const auto time_of = [](const Ranked& r) {
        return r.simulated_ns >= 0 ? r.simulated_ns : r.closed_form.total_ns;
    };
    if (simulate) {
        for (std::size_t i = 0; i < advice.ranked.size(); ++i) {
            Ranked& ranked = advice.ranked[i];
            if (static_cast<int>(i) >= finalists && ranked.candidate != baseline) continue;
            ranked.simulated_ns = simulate(candidates[static_cast<std::size_t>(ranked.candidate)]);
        }
        std::stable_sort(advice.ranked.begin(), advice.ranked.end(),
                         [&](const Ranked& a, const Ranked& b) {
                             if ((a.simulated_ns >= 0) != (b.simulated_ns >= 0))
                                 return a.simulated_ns >= 0;
                             return time_of(a) < time_of(b);
                         });
    }
    const double best = time_of(advice.ranked.front());
    const Ranked* choice = &advice.ranked.front();
    const Ranked* base = nullptr;
    for (const Ranked& ranked : advice.ranked) {
        if (ranked.candidate == baseline) base = &ranked;
        const bool comparable = !simulate || ranked.simulated_ns >= 0;
        if (comparable && time_of(ranked) <= best * (1 + tie) &&
            ranked.candidate < choice->candidate) {
            choice = &ranked;
        }
    }
    advice.choice = choice->candidate;
    advice.gain = time_of(*base) / time_of(*choice);
    advice.gain_low = advice.gain_high = advice.gain;
    // The closed form says how the gain moves when the node's rate and room are off by their
    // errors; how far it is from the simulation is part of what is not known.
    const Candidate& chosen = candidates[static_cast<std::size_t>(choice->candidate)];
    const Candidate& plain = candidates[static_cast<std::size_t>(baseline)];
    const double form_gain = base_form.total_ns / choice->closed_form.total_ns;
    for (const double rate : {-1.0, 1.0}) {
        for (const double room : {-1.0, 1.0}) {
            StoreLimits moved = limits;
            moved.rate *= 1 + rate * limits.rate_error;
            moved.room *= 1 + room * limits.room_error;
            const double gain = estimate(plain.phases, limits_for(plain, moved)).total_ns /
                                estimate(chosen.phases, limits_for(chosen, moved)).total_ns;
            advice.gain_low = std::min(advice.gain_low, advice.gain * gain / form_gain);
            advice.gain_high = std::max(advice.gain_high, advice.gain * gain / form_gain);
        }
    }
    if (&chosen != &plain) {
        advice.gain_low = std::min(advice.gain_low, form_gain);
        advice.gain_high = std::max(advice.gain_high, form_gain);
    }
    advice.reason = reason_of(chosen, plain, choice->closed_form, base_form, limits);
    return advice;
}

}  // namespace xstage::plan
