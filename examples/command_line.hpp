#pragma once
// Reads the command line of an example: its own options, and `--sim N` with the other options of the simulator.
//
//     int main(int argc, char** argv) {
//       examples::command_line line("Jacobi sweeps over a grid that the ranks share.");
//       line.count("-nx", options.nx, "columns");
//       return line.run(argc, argv, rank_main);
//     }
//
// If an option is unknown, has no value, or has a value that is not a number where one is expected, the program
// prints a message that names the option and exits with status 2 before any rank starts. `--help` lists the options.
// `-nx` and `--nx` are the same.
#include <parley/run.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace examples {

class command_line {
 public:
  explicit command_line(std::string what_it_does);
  ~command_line();

  /// An integer >= 0. `T` is int, unsigned or std::size_t.
  template <class T>
  void number(const std::string& name, T& value, const std::string& what);
  /// An integer >= 1.
  template <class T>
  void count(const std::string& name, T& value, const std::string& what);
  void word(const std::string& name, std::string& value, const std::string& what);
  /// A comma-separated list of words.
  void list(const std::string& name, std::vector<std::string>& words, const std::string& what);
  /// A comma-separated list of words. Each must be one of the words that `words` holds before the call.
  void some_of(const std::string& name, std::vector<std::string>& words, const std::string& what);
  void flag(const std::string& name, bool& value, const std::string& what);

  /// Reads the program's own `words`. Returns the exit status if the program must stop here (`--help` or an error), or
  /// nothing if it may run.
  std::optional<int> read(const char* path, std::vector<std::string> words);
  int run(int argc, char** argv, parley::ops::rank_function rank_main);

 private:
  struct parser;  // keeps CLI11, which is slow to compile, out of the examples
  std::unique_ptr<parser> parser_;
};

}  // namespace examples
