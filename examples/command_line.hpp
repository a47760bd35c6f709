#pragma once
// What an example takes from its command line, with `--sim N` and its kin:
//
//     int main(int argc, char** argv) {
//       examples::command_line line("Jacobi sweeps over a grid that the ranks share.");
//       line.count("-nx", options.nx, "columns");
//       return line.run(argc, argv, rank_main);
//     }
//
// An unknown word, a missing value, or one that is no number ends the program with status 2 and a line that names it, before any rank
// has begun. `--help` lists the words. `-nx` and `--nx` are the same.
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

  /// A whole number that is not negative. `T` is int, unsigned or std::size_t.
  template <class T>
  void number(const std::string& name, T& value, const std::string& what);
  /// A number from 1.
  template <class T>
  void count(const std::string& name, T& value, const std::string& what);
  void word(const std::string& name, std::string& value, const std::string& what);
  /// Words with commas between them.
  void list(const std::string& name, std::vector<std::string>& words, const std::string& what);
  /// Words with commas between them, each one of those that `words` has before.
  void some_of(const std::string& name, std::vector<std::string>& words, const std::string& what);
  void flag(const std::string& name, bool& value, const std::string& what);

  /// Takes the program's own `words`. Returns the status to end with, or nothing where the program is to run.
  std::optional<int> read(const char* path, std::vector<std::string> words);
  int run(int argc, char** argv, parley::ops::rank_function rank_main);

 private:
  struct parser;  // CLI11 takes longer to compile than an example
  std::unique_ptr<parser> parser_;
};

}  // namespace examples
