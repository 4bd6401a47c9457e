#pragma once

#include <optional>
#include <string>
#include <vector>

#include "xstage/burst_gap.hpp"
#include "xstage/topology.hpp"
#include "xstage/units.hpp"

namespace xstage::model {

/// A fitted number with its 95% interval, or the reason why the data cannot give it.
struct Estimate {
    std::string name;
    std::string unit;
    std::string meaning;
    std::optional<double> value;
    std::optional<double> low, high;
    std::string reason;  ///< why there is no value, or how one was found without an interval
};

/// How one kind of store leaves a producer (an SM). SM cycles: this is the issue side. Rates and
/// rooms count bytes on the way.
struct StorePath {
    std::string name;          ///< "st16", "bulk", ...
    Bytes instruction;         ///< stored by one instruction of one issuer
    double wire = 1;           ///< bytes on the way per byte stored: 8 if 4 bytes take a sector
    double link_cost = 1;      ///< link time of such a byte, that of the first path being 1
    bool per_warp = true;      ///< every warp issues; else one thread per SM
    bool warps_apart = false;  ///< recorded with every warp counting its gap from its own end
    Cycles start;              ///< before the first byte
    Cycles cold;               ///< more of it in a kernel's first burst
    Cycles per_instruction;    ///< of one warp, when it alone limits
    Cycles per_rival;          ///< more of it for every other warp of the SM
    BytesPerCycle accept;      ///< of one SM while its own room lasts
    Bytes room;                ///< private room of one SM
    Cycles between;            ///< of loop and stamps, once per burst, beside the gap
    Cycles finish;             ///< from the last burst's end to the end of the total
};

/// What the producers share. Rooms in bytes; the drain is in link time.
struct Network {
    BytesPerNanosecond drain;  ///< R, all producers of one GPU
    BytesPerCycle egress;      ///< out of one SM
    Bytes producer_room;       ///< at most this much of one SM beyond its own room
    Bytes group_room;          ///< shared by the SMs of a group
    double balance = 1;        ///< link share of the first half over that of the second
    double favour = 0;         ///< log-spread of weights above the median while a turn lasts
    double disfavour = 0;      ///< and below it
    double keep = 0;           ///< part of its luck that an SM keeps from burst to burst
    double tail = 0;           ///< of the slowest SM beyond the unlucky third, in steps of thirds
    Bytes turn;                ///< fair-share bytes for which a turn lasts
    double lasting = 0;        ///< exponent of the turn that stays for the rest of the burst
    double spread = 0;         ///< part of a stall by which SMs alike come apart
    double stride_cost = 0;    ///< most link time that chunks of no power of two can add
    double stride_half = 1;    ///< streams per 512 bytes of chunk at which half of it is reached
};

/// From issue to the peer. Link time.
struct Visibility {
    std::optional<Nanoseconds> fence;  ///< after the drain, to the end of a system-scope fence
    std::optional<Nanoseconds> echo;   ///< after the drain, to the peer's answer (a round trip)
};

/// Relative errors of predicted against recorded times, one line per kind of row.
struct ErrorLine {
    std::string what;  ///< "isolated", "second", "period", "mean issue", "visible", ...
    std::string path;
    int producers = 0;      ///< 0: all
    std::string statistic;  ///< "median" or "slowest"
    int rows = 0;
    double median = 0, p90 = 0;                       ///< of |error|, the hierarchical model
    std::optional<double> simple_median, simple_p90;  ///< the same, three-parameter model
};

/// Everything `predict` needs about a node, and what is known about it.
struct Profile {
    std::string node;
    GigaHertz clock;  ///< typical SM clock of the recording
    std::vector<StorePath> paths;
    Topology topology;
    Network network;
    Visibility visibility;
    std::vector<BurstGap> simple;  ///< three-parameter model per path, at `simple_producers` SMs
    int simple_producers = 0;
    bool hierarchical = true;  ///< which model cross-validation prefers
    std::vector<Estimate> parameters;
    std::vector<ErrorLine> held_out;
    std::vector<std::string> notes;
    int rows = 0;

    /// Throws Error (kBadInput) where the profile has no such path.
    const StorePath& path(const std::string& name) const;
};

}  // namespace xstage::model
