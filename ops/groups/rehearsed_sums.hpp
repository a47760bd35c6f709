#pragma once
/// The data of an all-reduce's rehearsal, and what its result may be.
///
/// A config may combine contributions with the call's function (`group_call::combine`), or add numbers itself. It must do so in the order
/// of the places: otherwise sums of floating-point numbers have other bits than the default's. The rehearsal runs before anybody knows the
/// type of the calls, so each word of its data is a reasonable number in every type, and its `combine` depends on the order. A result is
/// right if it is what one of these ways gives in the order of the places.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace parley::ops {

/// Word `at` of the contribution from `place`.
std::uint32_t rehearsed_word(std::uint64_t digest, std::size_t place, std::size_t at) noexcept;

/// The rehearsal's combine function: a + b is b + a, but (a + b) + c is not a + (b + c).
void combine_rehearsed(std::span<std::byte> into, std::span<const std::byte> from);

/// Returns the first wrong word of a result that no way of combining gives; nothing if the result is right.
std::optional<std::size_t> wrong_word(std::span<const std::uint32_t> result, std::uint64_t digest, std::size_t places);

}  // namespace parley::ops
