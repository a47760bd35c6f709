#pragma once
// What an example takes from its command line, beside `--sim N` and its kin:
//
//     int main(int argc, char** argv) {
//       examples::command_line line("Jacobi sweeps over a grid that the ranks share.");
//       line.option("-nx", options.nx, "columns")->check(CLI::PositiveNumber);
//       return line.run(argc, argv, rank_main);
//     }
//
// An unknown word, a missing value, or one that is no number ends the program with status 2 and a line that names it, before any rank
// has begun. `--help` lists the words. `-nx` and `--nx` are the same.
#include <parley/number_text.hpp>
#include <parley/program.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace examples {

class command_line {
 public:
  explicit command_line(std::string what_it_does) : app_(std::move(what_it_does)) {
    app_.footer("On N virtual ranks in one process: --sim N [--seed S] [--links free], also in bad weather (--weather, "
                "--control-weather,\n"
                "--deaths, with --seeds M for M of them), as docs/simulation.md says.");
  }

  template <class T>
  CLI::Option* option(const std::string& name, T& value, const std::string& what) {
    auto* const added = app_.add_option(doubled(name), value, what)->capture_default_str();
    if constexpr (std::is_arithmetic_v<T>) {
      const parley::runtime::number_range<T> within{std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()};
      added->check(
          CLI::Validator([within](std::string& text) { return parley::runtime::fault_of_number(text, within); }, ""));
    }
    return added;
  }
  CLI::Option* flag(const std::string& name, bool& value, const std::string& what) {
    return app_.add_flag(doubled(name), value, what);
  }

  /// With which status to end, if the program is not to run. `words` are those that are for it.
  std::optional<int> read(const char* path, std::vector<std::string> words) {
    const std::string program = std::filesystem::path(path).filename().string();
    app_.name(program);
    for (std::string& word : words) word = doubled(word);
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
      app_.parse(words);
    } catch (const CLI::CallForHelp&) {
      std::fputs(app_.help().c_str(), stdout);
      return 0;
    } catch (const CLI::ParseError& wrong) {
      std::fprintf(stderr, "%s: %s; %s --help lists what it takes\n", program.c_str(), wrong.what(), program.c_str());
      return 2;
    }
    return std::nullopt;
  }
  int run(int argc, char** argv, parley::ops::rank_function rank_main) {
    if (const auto status = read(argv[0], parley::simulation::own_words(argc, argv))) return *status;
    // parley::run unless --sim N is there
    return parley::simulation::run(argc, argv, rank_main, parley::simulation::program_words::own);
  }

 private:
  // CLI11 knows no long words behind one dash.
  static std::string doubled(std::string word) {
    const bool is_long = word.size() > 2 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1])) != 0;
    return is_long ? "-" + word : word;
  }
  CLI::App app_;
};

}  // namespace examples
