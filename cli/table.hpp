#pragma once
/// The document of job_summary.hpp as tables for people.
#include <boost/json/object.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace parley::cli {

using table_rows = std::vector<std::vector<std::string>>;
/// Columns as wide as they need to be; the first `left` of them to the left, numbers to the right.
std::string aligned(const table_rows& all, std::size_t left);

/// Per edge what each key agreed on, what its candidates took, and how its microbatches went; then the job as a whole.
std::string tables(const boost::json::object& document);

}  // namespace parley::cli
