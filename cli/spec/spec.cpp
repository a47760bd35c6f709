#include <parley/cli/spec/spec.hpp>

#include <parley/cli/spec/op_readers.hpp>
#include <parley/cli/spec/place.hpp>
#include <parley/transports/files/file_storage.hpp>

namespace parley::cli {

spec parse_spec(std::string_view text, const std::string& file_name, const spec_overrides& overrides) {
  const json_text file(file_name, std::string(text));
  const place root(file);
  root.expect_object("a spec", {"name", "about", "ranks", "ops"});
  spec job;
  job.name = root.at("name", "what this job is called").text("name");
  if (const auto about = root.find("about")) static_cast<void>(about->text("about"));
  if (const auto ranks = root.find("ranks")) job.ranks = static_cast<rank_id>(ranks->number("ranks", 1, most_ranks));
  if (overrides.ranks) job.ranks = *overrides.ranks;
  if (job.ranks == 0) root.fail(R"(the key "ranks" is missing: how many processes to start; -n also sets it)");
  const place ops = root.at("ops", "what the ranks do together");
  for (const place& item : ops.list("ops")) {
    if (job.ops.size() == most_ops) item.fail(too_many(most_ops, "ops"));
    op_spec op = read_op(item, job.ranks, overrides);
    for (const op_spec& other : job.ops) {
      if (other.name == op.name)
        item.at("name", "").fail("there is another op called " + in_quotes(op.name) + "; names must differ");
    }
    job.ops.push_back(std::move(op));
  }
  if (job.ops.empty()) ops.fail("there is no op; describe at least one");
  return job;
}

spec read_spec(const std::string& path, const spec_overrides& overrides) {
  transports::file_storage disk;
  const auto text = disk.read(path);
  if (!text)
    throw text_error(sentence(text.reason()) +
                     "; give the path of a JSON spec, for example examples/specs/send-recv.json");
  return parse_spec(*text, path, overrides);
}

}  // namespace parley::cli
