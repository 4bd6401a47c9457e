#include "sim/result_json.hpp"

#include <algorithm>

namespace xstage::sim {

core::Json to_json(const Result& result, const std::vector<std::string>& assumptions) {
    core::Json out;
    out["schema_version"] = 1;
    out["kind"] = "xstage.sim_result";
    out["assumptions"] = assumptions;
    out["total_ns"] = result.total_ns;
    out["incast"] = result.incast;
    out["events"] = result.events;
    out["ranks"] = core::Json::array();
    for (std::size_t r = 0; r < result.ranks.size(); ++r) {
        const RankResult& rank = result.ranks[r];
        core::Json item;
        item["rank"] = r;
        item["issued_ns"] = rank.issued_ns;
        item["drained_ns"] = rank.drained_ns;
        item["visible_ns"] = rank.visible_ns;
        item["end_ns"] = rank.end_ns;
        item["bytes_issued"] = rank.bytes_issued;
        item["bytes_drained"] = rank.bytes_drained;
        item["bytes_arrived"] = rank.bytes_arrived;
        item["peak_bytes_in_flight"] = rank.peak_bytes;
        core::Json columns;
        for (const ProducerResult& sm : rank.producers) {
            columns["busy_ns"].push_back(sm.busy_ns);
            columns["stall_ns"].push_back(sm.stall_ns);
            columns["held_ns"].push_back(sm.held_ns);
            columns["gate_ns"].push_back(sm.gate_ns);
            columns["end_ns"].push_back(sm.end_ns);
        }
        item["sms"] = columns;
        out["ranks"].push_back(item);
    }
    return out;
}

}  // namespace xstage::sim
