#pragma once
/// The document of job_summary.hpp as tables for people.
#include <boost/json/object.hpp>

#include <string>

namespace parley::cli {

/// Per edge what each key agreed on, what its candidates took, and how its microbatches went; then the job as a whole.
std::string tables(const boost::json::object& document);

}  // namespace parley::cli
