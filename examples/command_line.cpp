#include "command_line.hpp"

#include <parley/number_text.hpp>
#include <parley/program.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <utility>

namespace examples {

struct command_line::parser {
  explicit parser(std::string what_it_does) : app(std::move(what_it_does)) {}
  CLI::App app;
};

namespace {

// CLI11 does not accept a long name after a single dash, so `-nx` becomes `--nx`.
std::string doubled(std::string word) {
  const bool is_long = word.size() > 2 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1])) != 0;
  return is_long ? "-" + word : word;
}

template <class T>
CLI::Option* add(CLI::App& app, const std::string& name, T& value, const std::string& what) {
  return app.add_option(doubled(name), value, what)->capture_default_str();
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& value, const std::string& what) {
  const parley::runtime::number_range<T> within{0, std::numeric_limits<T>::max()};
  return add(app, name, value, what)
      ->check(
          CLI::Validator([within](std::string& text) { return parley::runtime::fault_of_number(text, within); }, ""));
}

}  // namespace

command_line::command_line(std::string what_it_does) : parser_(std::make_unique<parser>(std::move(what_it_does))) {
  parser_->app.footer(
      "On N virtual ranks in one process: --sim N [--seed S] [--links free], also in bad weather (--weather, "
      "--control-weather,\n"
      "--deaths, with --seeds M for M of them), as docs/simulation.md says.");
}
command_line::~command_line() = default;

template <class T>
void command_line::number(const std::string& name, T& value, const std::string& what) {
  add_number(parser_->app, name, value, what);
}
template <class T>
void command_line::count(const std::string& name, T& value, const std::string& what) {
  add_number(parser_->app, name, value, what)->check(CLI::PositiveNumber);
}
template void command_line::number(const std::string&, int&, const std::string&);
template void command_line::number(const std::string&, unsigned&, const std::string&);
template void command_line::number(const std::string&, std::size_t&, const std::string&);
template void command_line::count(const std::string&, int&, const std::string&);
template void command_line::count(const std::string&, unsigned&, const std::string&);
template void command_line::count(const std::string&, std::size_t&, const std::string&);

void command_line::word(const std::string& name, std::string& value, const std::string& what) {
  add(parser_->app, name, value, what);
}
void command_line::list(const std::string& name, std::vector<std::string>& words, const std::string& what) {
  add(parser_->app, name, words, what)->delimiter(',');
}
void command_line::some_of(const std::string& name, std::vector<std::string>& words, const std::string& what) {
  add(parser_->app, name, words, what)->delimiter(',')->check(CLI::IsMember(words));
}
void command_line::flag(const std::string& name, bool& value, const std::string& what) {
  parser_->app.add_flag(doubled(name), value, what);
}

std::optional<int> command_line::read(const char* path, std::vector<std::string> words) {
  CLI::App& app = parser_->app;
  const std::string program = std::filesystem::path(path).filename().string();
  app.name(program);
  for (std::string& word : words) word = doubled(word);
  std::reverse(words.begin(), words.end());  // CLI11 expects them in reverse order
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& wrong) {
    std::fprintf(stderr, "%s: %s; %s --help lists what it takes\n", program.c_str(), wrong.what(), program.c_str());
    return 2;
  }
  return std::nullopt;
}

int command_line::run(int argc, char** argv, parley::ops::rank_function rank_main) {
  if (const auto status = read(argv[0], parley::simulation::own_words(argc, argv))) return *status;
  // Simulates the ranks when the command line has --sim N; otherwise the same as parley::run.
  return parley::simulation::run(argc, argv, rank_main, parley::simulation::program_words::own);
}

}  // namespace examples
