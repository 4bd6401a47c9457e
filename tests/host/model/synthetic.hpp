#pragma once

#include "model/cases.hpp"
#include "model/parameters.hpp"
#include "xstage/model.hpp"

namespace xstage::model {

/// A node that exists nowhere, for properties that must hold on any.
inline Profile synthetic_profile() {
    Profile profile;
    profile.node = "synthetic";
    profile.clock = GigaHertz{1.8};
    profile.paths = {default_path("st16")};
    profile.network = default_network();
    profile.topology = {132, {{6, 6, 6}, {6, 6, 6}}, {}};
    profile.topology.clusters.resize(8, {6, 6, 4});
    profile.topology.halves = equal_halves(profile.topology);
    return profile;
}

/// What a recording of `profile` would hold: every row is the profile's own prediction.
inline BurstRow recorded(const Profile& profile, BurstMode mode, int producers, int warps,
                         double bytes, int bursts, double gap) {
    BurstRow row;
    row.mode = mode, row.path = "st16", row.producers = producers, row.warps = warps;
    row.bytes_per_producer = Bytes{bytes}, row.bursts = bursts, row.gap = Cycles{gap};
    row.clock = profile.clock;
    Case c;
    c.load = {producers, warps, profile.clock, GapFrom::kProducer};
    c.bytes = row.bytes_per_producer, c.bursts = bursts, c.gap = row.gap, c.mode = mode;
    const Observed o = simulate(profile, c);
    const auto spread = [&](int at) {
        return Spread{std::nullopt, Cycles{o[at]}, std::nullopt, Cycles{o[at + 1]}};
    };
    row.issue = {{0, spread(kFirst)}};
    if (bursts > 1) row.issue.push_back({bursts - 1, spread(kLast)});
    row.total = spread(kTotal);
    return row;
}

inline Measurements recording_of(const Profile& profile) {
    Measurements m;
    m.provenance.gpus = {{"synthetic", "", profile.topology.sms, std::nullopt}};
    for (int producers : {1, 16, 66, 132}) {
        for (int warps : {1, 4, 8}) {
            for (double kib : {4, 8, 12, 16, 24, 32, 48, 64, 128, 256}) {
                m.bursts.push_back(
                    recorded(profile, BurstMode::kIsolated, producers, warps, kib * 1024, 1, 0));
            }
        }
        if (producers == 1) continue;
        for (double kib : {16, 32, 64, 128}) {
            for (double gap : {0, 2000, 4000, 8000, 16000, 32000, 64000}) {
                m.bursts.push_back(
                    recorded(profile, BurstMode::kGap2, producers, 4, kib * 1024, 2, gap));
            }
        }
    }
    SmRow all;
    all.name = "all", all.path = "st16";
    // 6 groups of 4 and 18 of 6: a favoured SM ends after 96 units, the others after 132.
    for (int i = 0; i < 132; ++i) all.issue.push_back(Cycles{i < 24 ? 96000.0 : 132000.0});
    m.per_sm = {all};
    return m;
}

}  // namespace xstage::model
