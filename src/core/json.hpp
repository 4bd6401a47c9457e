#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace xstage::core {

using Json = nlohmann::ordered_json;

/// Parses text that came from `file`. Throws kBadInput with file:line:column and what was expected.
Json parse_json(std::string_view text, const std::string& file);

/// Checks a document against the compiled-in schema `name` (schemas/<name>.schema.json) and throws
/// kBadInput with the file, the JSON path and what was expected there, for the first fault found.
void validate(const Json& document, std::string_view name, const std::string& file);

/// read_file, parse_json and validate in one; "-" is standard input.
Json load_json(const std::string& path, std::string_view schema);

/// Two spaces of indent; a row of a table stays on one line, so that documents can be read and
/// compared.
std::string dump_json(const Json& document);

/// The text of schemas/<name>.schema.json; empty if there is none of that name.
std::string_view schema_text(std::string_view name);

}  // namespace xstage::core
