#pragma once
/// Group configs by their names in a spec: `star`, `star(chunk_bytes=256KiB)`, `chain(chunk_bytes=64KiB)`, `tree`, `one_shot`,
/// `two_shot(chunk_bytes=64KiB)`.
#include <parley/error.hpp>
#include <parley/group_config.hpp>

#include <string_view>

namespace parley::cli {

/// `bad_argument` for an unknown name or parameter; the text lists the known ones.
runtime::result<ops::group_config_ptr> named_group_config(std::string_view text);

}  // namespace parley::cli
