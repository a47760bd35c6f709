#pragma once
/// Values as JSON, for the few documents that a rank writes: its flight recorder and the evidence of its decisions.
#include <string>
#include <string_view>

namespace parley::runtime {

/// Bytes that are not printable ASCII are escaped, so that the document is valid with any text.
std::string in_quotes(std::string_view text);
/// A duration with one decimal; `null` if it is not finite, because it was not measured.
std::string measured(double ns);

}  // namespace parley::runtime
