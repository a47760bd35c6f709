#pragma once
/// Reads one op of a spec: the keys of its kind. Reports every kind of mistake in them.
#include <parley/cli/spec/op_spec.hpp>
#include <parley/cli/spec/place.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace parley::cli {

op_spec read_op(const place& at, rank_id world, const spec_overrides& overrides);

/// `these are more than 1000 ops`.
std::string too_many(std::uint64_t most, std::string_view of_what);

}  // namespace parley::cli
