#pragma once
/// Lines for the user: on standard output what was asked for, on standard error what is wrong.
#include <cstdio>
#include <string>

namespace parley::cli {

inline void say(const std::string& line) { std::printf("%s\n", line.c_str()); }
inline void complain(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

}  // namespace parley::cli
