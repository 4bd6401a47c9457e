#include "model/parameters.hpp"

#include <algorithm>
#include <cmath>

namespace xstage::model {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A setter and a getter for one field, whatever its unit.
template <class Field>
Parameter parameter(std::string name, std::string unit, std::string meaning, std::size_t path,
                    double low, double high, Field field) {
    const auto get = [field](const Profile& p) {
        const auto& value = field(p);
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
            return value;
        } else {
            return value.value();
        }
    };
    const auto set = [field](Profile& p, double x) {
        auto& value = const_cast<std::decay_t<decltype(field(p))>&>(field(p));
        value = std::decay_t<decltype(value)>(x);
    };
    return {std::move(name), std::move(unit), std::move(meaning), path, low, high, get, set};
}

}  // namespace

std::vector<Parameter> all_parameters(const Profile& profile) {
    std::vector<Parameter> all;
    const auto shared = [&](const char* name, const char* unit, const char* meaning, double low,
                            double high, auto member) {
        all.push_back(parameter(
            name, unit, meaning, kShared, low,
            high, [member](const Profile& p) -> const auto& { return p.network.*member; }));
    };
    shared("drain", "B/ns", "R: link rate of all producers together", 0, kUnbounded,
           &Network::drain);
    shared("egress", "B/cycle", "rate out of one SM", 0, kUnbounded, &Network::egress);
    shared("producer_room", "B", "one SM's part of the network's room at most", 0, kUnbounded,
           &Network::producer_room);
    shared("group_room", "B", "room shared by the SMs of a group", 0, kUnbounded,
           &Network::group_room);
    if (!profile.topology.halves.empty()) {
        shared("balance", "1", "link share of one half of the GPU over that of the other", 0.7,
               1.43, &Network::balance);
    }
    shared("favour", "1", "log-spread of arbitration above the median", 0.01, 3, &Network::favour);
    shared("disfavour", "1", "log-spread of arbitration below the median", 0.01, 3,
           &Network::disfavour);
    shared("keep", "1", "part of its luck that an SM keeps from burst to burst", 0.0005, 1,
           &Network::keep);
    shared("tail", "1", "slowest SM beyond the unlucky third, in steps of thirds", 0.001, 5,
           &Network::tail);
    shared("turn", "B", "fair-share bytes for which arbitration keeps its preference", 0,
           kUnbounded, &Network::turn);
    shared("lasting", "1", "part of the preference that outlasts a turn", 0.0005, 0.5,
           &Network::lasting);
    shared("spread", "1", "part of a stall by which SMs alike come apart", 0.001, 2,
           &Network::spread);
    shared("stride_cost", "1", "most link time added by chunks of no power of two", 0.001, 2,
           &Network::stride_cost);
    shared("stride_half", "1", "streams per 512 B of chunk at which half of it is reached", 0,
           kUnbounded, &Network::stride_half);
    for (std::size_t i = 0; i < profile.paths.size(); ++i) {
        const auto own = [&](const char* name, const char* unit, const char* meaning, auto member) {
            all.push_back(parameter(
                profile.paths[i].name + "." + name, unit, meaning, i, 0, kUnbounded,
                [ i, member ](const Profile& p) -> const auto& { return p.paths[i].*member; }));
        };
        own("start", "cycle", "issue time before the first byte", &StorePath::start);
        own("cold", "cycle", "more of it in the first burst", &StorePath::cold);
        if (profile.paths[i].per_warp) {
            own("per_instruction", "cycle", "issue time of one warp per instruction",
                &StorePath::per_instruction);
            own("per_rival", "cycle", "more of it for every other warp of the SM",
                &StorePath::per_rival);
        }
        own("accept", "B/cycle", "rate of one SM while its own room lasts", &StorePath::accept);
        own("room", "B", "private room of one SM", &StorePath::room);
        // The drain is the first path's.
        if (i > 0) {
            own("link_cost", "1", "link time of a byte, relative to the first path's",
                &StorePath::link_cost);
        }
    }
    return all;
}

double to_free(const Parameter& p, double value) {
    if (p.high == kUnbounded) return std::log(std::max(value - p.low, 1e-9));
    const double x = std::clamp((value - p.low) / (p.high - p.low), 1e-6, 1 - 1e-6);
    return std::log(x / (1 - x));
}

double from_free(const Parameter& p, double free) {
    if (p.high == kUnbounded) return p.low + std::exp(std::clamp(free, -30.0, 60.0));
    return p.low + (p.high - p.low) / (1 + std::exp(-free));
}

StorePath default_path(const std::string& name) {
    StorePath path;
    path.name = name;
    const auto starts = [&](const char* prefix) { return name.starts_with(prefix); };
    const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
    const bool bulk = starts("bulk") || starts("tma") || starts("tensor");
    const bool four = starts("st4") || ends("_f32") || ends("_bf16x2");  // bytes a lane
    path.per_warp = !bulk;
    path.instruction = Bytes{bulk ? 4096.0 : four ? 128.0 : starts("st8") ? 256.0 : 512.0};
    constexpr double kSector = 32;  // bytes; what leaves an SM at the least
    if (ends("_sector")) path.wire = kSector * 32 / path.instruction.value();
    path.start = Cycles{bulk ? 160.0 : 200.0};
    path.cold = Cycles{bulk ? 1.0 : 50.0};
    path.per_instruction = Cycles{bulk ? 0.0 : 25.0};
    path.per_rival = Cycles{bulk ? 0.0 : 0.5};
    path.accept = BytesPerCycle{bulk ? 32.0 : 50.0};
    path.room = Bytes{bulk ? 2500.0 : 10000.0};
    path.between = Cycles{80};
    path.finish = Cycles{260};
    return path;
}

Network default_network() {
    Network network;
    network.drain = BytesPerNanosecond{370};
    network.egress = BytesPerCycle{25.6};
    network.producer_room = Bytes{14000};
    network.group_room = Bytes{35000};
    network.favour = 0.48;
    network.disfavour = 0.22;
    network.keep = 0.65;
    network.tail = 1.6;
    network.turn = Bytes{18000};
    network.lasting = 0.21;
    network.spread = 0.02;
    network.stride_cost = 0.35;
    network.stride_half = 60;
    return network;
}

}  // namespace xstage::model
