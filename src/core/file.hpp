#pragma once

#include <cstddef>
#include <string>

namespace xstage::core {

inline constexpr std::size_t kMaxDocumentBytes = std::size_t{64} << 20;

/// The whole of a file, or of standard input for "-". Throws kBadInput with the path and the
/// reason: missing, a directory, unreadable, larger than `limit`.
std::string read_file(const std::string& path, std::size_t limit = kMaxDocumentBytes);

/// Replaces `path` by `text` in one step: a reader sees the old file or the new one, never half.
/// "-" writes to standard output. Throws kBadInput if the place cannot be written.
void write_file_atomic(const std::string& path, const std::string& text);

}  // namespace xstage::core
