#include <parley/kernel_key.hpp>

#include <parley/tuning/config.hpp>

#include <utility>

namespace parley::tuning {

void kernel_key::refuse_more() {
  throw invalid({fault::too_many, "a kernel's key has more than " + std::to_string(most) +
                                      " parameters; name only what its speed depends on"});
}

outcome<std::string> parameters_text(const kernel_key& key) {
  if (key.size() == 0) return std::string("all");
  // Keys follow the rules of a config's parameters, because both are written to lines of results files.
  config_identity as_config{.name = "key"};
  for (const kernel_parameter& p : key) {
    std::string value = p.word ? std::string(p.word.view()) : std::to_string(p.number);
    as_config.parameters.emplace_back(std::string(p.name.view()), std::move(value));
  }
  const auto sorted = canonical(std::move(as_config));
  if (!sorted) return problem{sorted.reason().kind, "the key of a kernel: " + sorted.reason().text};
  std::string text;
  for (const parameter& p : sorted->parameters) {
    if (!text.empty()) text += ' ';
    text += p.name + '=' + p.value;
  }
  return text;
}

}  // namespace parley::tuning
