#include <parley/ops/core/call_type.hpp>
#include <parley/runtime/random.hpp>

namespace parley::ops {

namespace {
constexpr std::uint16_t of_the_program = 0x8000;
std::uint64_t hash_of(std::uint64_t h, std::string_view name) noexcept {
  for (const char c : name) h = runtime::mix(h ^ static_cast<unsigned char>(c));
  return h;
}
}  // namespace

std::uint64_t call_types::own_combination(std::string_view element, std::string_view combine) noexcept {
  const std::uint64_t h = hash_of(hash_of(element.size(), element), combine);
  constexpr std::uint64_t known = combinations.size();
  constexpr std::uint64_t all = std::uint64_t{1} << combination_bits;
  constexpr unsigned more_bits = actors::call_type_bits - actors::call_type_tag_bits;
  const std::uint64_t more = h >> (64 - more_bits);
  return more << actors::call_type_tag_bits | (known + h % (all - known));
}

std::uint16_t own_element(std::string_view name) noexcept {
  return static_cast<std::uint16_t>(of_the_program | (hash_of(name.size(), name) >> 49U));
}

std::uint16_t elements_together(std::uint16_t before, std::uint16_t next) noexcept {
  if (before == 0 || before == next) return next;
  return static_cast<std::uint16_t>(of_the_program | (runtime::mix(std::uint64_t{before} << 16U | next) >> 49U));
}

bool is_of_a_run(std::uint16_t type) noexcept {
  return (type & (of_the_program | call_types::of_a_run)) == call_types::of_a_run;
}

std::string words_of_elements(std::uint16_t type) {
  if (is_of_a_run(type)) {
    using namespace call_types;
    constexpr unsigned runs = 1U << run_bits;
    constexpr unsigned most = 1U << microbatch_bits;
    // The type holds only the last bits of both numbers.
    const auto or_more = [](unsigned n, unsigned period) {
      return std::to_string(n) + " (or " + std::to_string(n + period) + ", " + std::to_string(n + 2 * period) + " …)";
    };
    return "an activation of run " + or_more((type >> microbatch_bits) % runs, runs) + ", of " +
           or_more(type % most, most) + " microbatches";
  }
  const bool known = type < call_types::elements.size();
  return (known ? std::string(call_types::elements[type]) : std::string("the program's own")) + " elements";
}

std::string words_of(actors::call_type type) {
  if (type == actors::call_type::any) return "no type";
  const auto code = static_cast<std::uint64_t>(type) & ((1U << actors::call_type_tag_bits) - 1);
  const std::uint64_t element = code >> call_types::combination_bits;
  const std::uint64_t combination = code & ((1U << call_types::combination_bits) - 1);
  std::string words = element == 0 || element >= call_types::elements.size()
                          ? std::string("the program's own elements")
                          : std::string(call_types::elements[element]) + " elements";
  if (combination == 0) return words;
  const bool known = combination < call_types::combinations.size();
  // If the element type is the program's own, the combination is a hash of both types.
  if (known || element != 0)
    words += " combined by " +
             (known ? std::string(call_types::combinations[combination]) : "a function of the program's own");
  return words;
}

}  // namespace parley::ops
