#pragma once
/// The document of job_summary.hpp as tables for people.
#include <boost/json/object.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace parley::cli {

using table_rows = std::vector<std::vector<std::string>>;
/// Makes columns as wide as they need to be; the first `left` columns are aligned to the left, the others to the right.
std::string aligned(const table_rows& all, std::size_t left);

/// `0->1` in an agreement of the document: its sender and its receiver, or all ranks of its group.
std::string ranks_of(const boost::json::object& agreement);

/// For each edge or group: each key's agreed config, the times of its candidates, and the microbatches that were trials; then the whole
/// job.
std::string tables(const boost::json::object& document);

}  // namespace parley::cli
