#pragma once
/// Configs that the program has written: an object with one function per role, which is a coroutine or a generator.
#include "ranks.hpp"

#include <parley/config.hpp>
#include <parley/group_config.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::python {

/// A list of configs as Python has it: names, and objects of the program.
using config_list = std::vector<nb::object>;

/// Throws `bad_argument` with what is wrong in the list, `op` in front. `where` keeps the objects.
std::vector<ops::config_ptr> configs_of(home& where, const std::string& op, const config_list& all);
std::vector<ops::group_config_ptr> group_configs_of(home& where, const std::string& op, const config_list& all);

/// The coroutine that a function of the program has made; empty if the function has returned something else, which `returned` then is.
nb::object coroutine_of(const nb::object& returned);

/// The program's answers to `can_run`, as bad answers are errors. `where` keeps the function.
ops::capability_function capabilities_of(home& where, const std::optional<nb::callable>& can_run);

/// Calls `function(argument)`, a plain function or a coroutine function, and waits for its end. `s` gets what it returned or threw.
runtime::task<> run_with(kept_object function, kept_object argument, std::shared_ptr<script> s);

/// `e` in words: what was thrown, and where. An error of parley keeps its code.
runtime::error located_error_of(nb::python_error& e);

}  // namespace parley::python
