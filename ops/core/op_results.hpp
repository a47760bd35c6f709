#pragma once
/// What a results file says of an op, and what an op's decisions say in a results file.
///
///     activations/0>1,16MiB_bf16,chunked(chunk_bytes=262144 in_flight=4),1.262
///
///     op_memory m = recall_op(file, declaration, ids);               // its entries, and warnings about them
///     if (auto entry = entry_of(declaration, id_of_the_winner, decision)) file.add(*entry);
///
/// What was measured between machines that differ has their combination in its op's name: `activations/0>1@9f3c…`. A solution
/// that the op does not have here is a warning; the leader makes a miss of it, unless another rank has it all the same.
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/tuning/results/results.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

struct op_memory {
  std::vector<actors::remembered_best> entries;
  std::vector<std::string> warnings;
};

/// Entries for keys that this op can have, a bounded number of them: they travel in one message. `ids` are this rank's configs.
op_memory recall_op(const tuning::results_file& file, const actors::op_declaration& op,
                    const std::vector<std::string>& ids);

/// Nothing for a decision that was not measured: it would pin the default for good.
std::optional<tuning::result_entry> entry_of(const actors::op_declaration& op, const std::string* id,
                                             const actors::decision_record& decision);

/// `activations/0>1`; of a larger group the first and the last rank.
std::string entry_name(const actors::op_declaration& op);

}  // namespace parley::ops
