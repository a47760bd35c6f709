#pragma once
// Functions of libraries that are loaded when a program runs.
#include <dlfcn.h>

namespace parley::transports {

// Looks a function up by its name. Returns false if the library does not have it.
template <class F>
bool load(void* library, const char* name, F& into) {
  into = reinterpret_cast<F>(::dlsym(library, name));
  return into != nullptr;
}

}  // namespace parley::transports
