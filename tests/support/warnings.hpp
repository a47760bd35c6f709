#pragma once
/// Whether a rank has warned of something: one of its warnings has all of the words.
///
///     CHECK(warned(w[1], {"config lazy", "wrong data"}));
#include <parley/rank.hpp>

#include <initializer_list>
#include <string_view>

namespace parley::tests {

bool warned(const ops::rank& r, std::initializer_list<std::string_view> words);

}  // namespace parley::tests
