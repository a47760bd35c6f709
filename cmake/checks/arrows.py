#!/usr/bin/env python3
"""Checks that includes follow the arrows between the folders, that what must not know time or a wire does not, that nobody waits for
all of a stream or a GPU, that a source includes its own header first, which proves that the header leans on nothing else, that files
of one folder do not include each other in a cycle, that <parley/parley.hpp> reaches no header of the protocol or of an event loop,
and that examples include public headers alone.
A public header, include/parley/NAME.hpp, belongs to the highest folder whose namespace it opens.

    arrows.py               exits 1 and prints file:line for each broken arrow
    arrows.py --self-test   proves on a tree of bad files that each rule fails when it is broken
"""

import argparse
import pathlib
import re
import sys
import tempfile

# Who may include whom. A folder may always include itself; tests/, bench/, examples/ and fuzz/ may include everything.
BELOW_OPS = {"runtime", "tuning", "transports", "actors"}
ARROWS = {
    "runtime": set(),
    "tuning": set(),
    "transports": {"runtime"},
    "actors": {"runtime", "tuning"},
    "ops": BELOW_OPS,
    "simulation": BELOW_OPS | {"ops"},
    "cli": BELOW_OPS | {"ops", "simulation", "users"},
}

UCX = r"uc[pstm]/.*"
CUDA = r"(cuda|cuda_\w+|cublas\w*|nccl\w*)\.h"
CLOCK_HEADER = r"chrono|ctime|time\.h|sys/time\.h|sys/timerfd\.h|boost/asio/.*timer\.hpp"
CLOCK_CALL = (r"\b(steady_clock|system_clock|high_resolution_clock|clock_gettime|gettimeofday|timespec_get|CLOCK_[A-Z_]+"
              r"|__rdtscp?|__builtin_ia32_rdtscp?)\b")
ONE_CLOCK = "a rank's time comes from its executor, which a simulation replaces"

# Only transports/ speaks UCX; the protocol and the decisions see no clock and no GPU, whoever passes them the time.
FORBIDDEN_HEADERS = {
    "runtime": [(UCX, "UCX belongs into transports/"), (CUDA, "CUDA belongs into transports/"), (CLOCK_HEADER, ONE_CLOCK)],
    "tuning": [(UCX, "UCX belongs into transports/"), (CUDA, "tuning/ knows no GPU"),
               (CLOCK_HEADER, "tuning/ is pure: pass times in as values"),
               (r"boost/asio.*", "tuning/ does no input or output")],
    "actors": [(UCX, "actors/ knows no transport: use runtime/wire/link.hpp"), (CUDA, "actors/ knows no GPU"),
               (CLOCK_HEADER, "actors/ knows no clock: ask the executor"),
               (r"boost/asio.*", "actors/ knows no event loop: use runtime/time/executor.hpp")],
    "ops": [(UCX, "UCX belongs into transports/"), (CLOCK_HEADER, ONE_CLOCK)],
    "simulation": [(UCX, "UCX belongs into transports/"), (CLOCK_HEADER, "simulation/ has virtual time only")],
    "cli": [(UCX, "UCX belongs into transports/")],
}
FORBIDDEN_WORDS = {folder: [(CLOCK_CALL, "no clock here: time comes from the executor or as a value")]
                   for folder in ("runtime", "tuning", "actors", "ops", "simulation")}
# Who waits for a stream or a device waits for kernels that may wait for a message, and holds up all ranks of its thread meanwhile.
WHOLE_DEVICE = (r"\b(cuda(Device|Stream)Synchronize|cu(Ctx|Stream)Synchronize)(_\w+)?\b",
                "no wait for a whole stream or device: ask for what is waited for, from the reactor's loop")
for folder in ("runtime", "tuning", "transports", "actors", "ops"):
    FORBIDDEN_WORDS.setdefault(folder, []).append(WHOLE_DEVICE)
# file: what it may include and name of the above. The reactor is the executor of real ranks. The executor counts ticks to see whether the
# clock must be read; one on virtual time does not look at them (`clock_reading::each_time`).
CLOCKS_ALLOWED = {"include/parley/identifiers.hpp": ("chrono",),  # spans of time, and none of its clocks
                  "runtime/time/reactor.cpp": ("chrono", "sys/timerfd.h", "clock_gettime", "CLOCK_MONOTONIC"),
                  "runtime/time/executor.hpp": ("__builtin_ia32_rdtsc",)}

# Nothing that differs from run to run or from library to library may reach a decision: a simulated run is repeated from its seed.
CHANCE = (r"\bstd::(random_device|mt19937\w*|default_random_engine|\w+_distribution|shuffle|random_shuffle)\b"
          r"|\bstd::hash<|\b(rand|srand|drand48|getrandom|arc4random)\s*\(")
PURE = ("runtime", "tuning", "actors", "ops", "simulation")
for folder in PURE:
    FORBIDDEN_WORDS.setdefault(folder, []).append((CHANCE, "chance comes from the executor's streams or from dice"))
# Maps whose order differs between libraries. Looking a key up is fine; going through them is not.
UNORDERED = re.compile(r"\bunordered_(?:flat_|node_|multi)?(?:map|set)<[^;]*>\s*(\w+)\s*[;{=]")
# Nor is there an order of places in memory that two runs agree on.
BY_PLACE = (r"\bstd::(multi)?(map|set)<\s*(const\s+)?[\w:]+(<[^<>]*>)?(\s+const)?\s*\*",
            "an order of places in memory differs from run to run: key it by a number")
for folder in PURE:
    FORBIDDEN_WORDS[folder].append(BY_PLACE)
LOOP = re.compile(r"\bfor\s*\([^;)]*:\s*\*?(?:this->)?(\w+)\s*\)|\b(\w+)\.c?begin\(\)")
# file: the maps that it may go through, because what it does with the elements has no order.
UNORDERED_ALLOWED = {"simulation/checkers/observer.cpp": ("counts_",)}  # sums, which it adds up

SOURCES = (".hpp", ".cpp", ".cu", ".cuh", ".h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
OWN = re.compile(r"parley/(\w+)/")
PUBLIC = pathlib.Path("include/parley")
NAMESPACE = re.compile(r"^namespace parley::(\w+)", re.MULTILINE)


class public_headers:
    """include/parley of a tree, and the folder of each header: the highest one whose namespace it opens, as it may declare names of
    lower ones. `users` for a header that opens none, such as parley.hpp."""

    def __init__(self, root):
        self.folders = {}
        for path in sorted((root / PUBLIC).glob("*.hpp")):
            opened = set(NAMESPACE.findall(path.read_text(encoding="utf-8")))
            self.folders[path.name] = next((folder for folder in reversed(ARROWS) if folder in opened), "users")

    def folder_of(self, target):
        """The folder that <target> belongs to; None where it is not parley's."""
        own = OWN.match(target)
        return own.group(1) if own else self.folders.get(target.removeprefix("parley/")) if target.startswith("parley/") else None


def path_of(root, target):
    """Where <target> lies."""
    name = target.removeprefix("parley/")
    return root / name if "/" in name else root / PUBLIC / name


def faults_of_include(folder, quote, target, public):
    of = public.folder_of(target)
    if of and of != folder and of not in ARROWS.get(folder, ()):
        yield f"{folder}/ must not include {of}/" if OWN.match(target) else f"{folder}/ must not include <{target}>, which is of {of}/"
    if quote == '"' and "/" in target:
        yield f'write <parley/...>, not "{target}"'
    for pattern, why in FORBIDDEN_HEADERS.get(folder, []):
        if re.fullmatch(pattern, target):
            yield f"<{target}>: {why}"


def faults_of_line(folder, line, public, clocks_allowed=()):
    include = INCLUDE.match(line)
    if include:
        if include.group(2) not in clocks_allowed:
            yield from faults_of_include(folder, include.group(1), include.group(2), public)
        return
    code = line.split("//")[0]
    for word in clocks_allowed:
        code = re.sub(rf"\b{word}\b", "", code)
    for pattern, why in FORBIDDEN_WORDS.get(folder, []):
        if re.search(pattern, code):
            yield why


def unordered_names(root):
    """Members and variables of the pure folders that are hash maps, by the file's name without its folder and ending."""
    names = {}
    for folder in [*PURE, PUBLIC]:
        for path in sorted((root / folder).rglob("*.[ch]pp")):
            found = UNORDERED.findall(path.read_text(encoding="utf-8"))
            names.setdefault(path.stem, set()).update(found)
    return names


def faults_of_order(path, line, names, root):
    if path.stem not in names:
        return
    for found in LOOP.finditer(line.split("//")[0]):
        name = found.group(1) or found.group(2)
        allowed = UNORDERED_ALLOWED.get(str(path.relative_to(root)), ())
        if name in names[path.stem] and name not in allowed:
            yield f"{name} has no order that two libraries agree on: sort what is taken from it, or use an ordered map"


# What a program that includes <parley/parley.hpp> does not read: the protocol, the ends of ops, event loops and transports' own. Time to
# compile is what they cost.
FACE = "parley/parley.hpp"
BEHIND_THE_FACE = (r"boost/asio.*", UCX, CUDA,
                   r"parley/actors/(\w+/)?(assignment|coordinator|edge_receiver|edge_sender|group_leader|group_worker|lease\w*|messages"
                   r"|participant|rooted_group|rounds|services)\.hpp",
                   r"parley/ops/(\w+/)?(declared_edge|edge|group|op_host|rank_foundation|\w+_end)\.hpp",
                   r"parley/transports/(\w+/)?(rendezvous|ucx)\w*\.hpp")


def faults_of_face(root):
    """Includes that the face must not reach, each with the header that has it."""
    seen, unread = set(), [FACE]
    while unread:
        name = unread.pop()
        path = path_of(root, name)
        if name in seen or not path.exists():
            continue
        seen.add(name)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            include = INCLUDE.match(line)
            if not include:
                continue
            target = include.group(2)
            if any(re.fullmatch(pattern, target) for pattern in BEHIND_THE_FACE):
                yield f"{path.relative_to(root)}:{number}: <{target}> would be read by every program that includes <{FACE}>: declare what is " \
                      "needed of it, and include it in the source"
            elif target.startswith("parley/"):
                unread.append(target)


def faults_of_users(root):
    """Examples show what programs can include."""
    for path in sorted((root / "examples").rglob("*.[chi]*")):
        if path.suffix not in (".hpp", ".cpp", ".cu"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            include = INCLUDE.match(line)
            if include and OWN.match(include.group(2)):
                yield f"{path.relative_to(root)}:{number}: <{include.group(2)}> is not installed: include a header of {PUBLIC}/"


def faults_of_headers(root, path, lines, public):
    if path.suffix == ".hpp" and lines[:1] != ["#pragma once"]:
        yield 1, "a header begins with #pragma once"
    beside = path.with_suffix(".hpp")
    is_public = public.folders.get(beside.name) == path.relative_to(root).parts[0]
    if path.suffix == ".cpp" and (beside.exists() or is_public):
        own = f"#include <parley/{beside.relative_to(root) if beside.exists() else beside.name}>"
        first = next((at for at, line in enumerate(lines, start=1) if INCLUDE.match(line)), 1)
        if lines[first - 1:first] != [own]:
            yield first, f"a source includes its own header first: {own}"


# A room is NAME.hpp and NAME.cpp in one folder; its header may be a public one. Rooms that include each other in a cycle cannot be understood apart: one of their ideas
# is in the wrong file, or they are one room.


def includes_between_rooms(root, public):
    """For each room, named as `ops/edges/edge`: the other rooms of its top-level folder that it includes, each with a `file:line` that
    does."""
    files = [path.relative_to(root) for folder in ARROWS for path in sorted((root / folder).rglob("*")) if path.suffix in SOURCES]
    sources = {(name.parts[0], name.stem): str(name.with_suffix("")) for name in files if name.suffix == ".cpp"}

    def room_of_public(name):
        folder = public.folders[name]
        stem = pathlib.PurePath(name).stem
        return sources.get((folder, stem), f"{folder}/{stem}")

    def room_of(name, quote, target):
        if target.startswith("parley/"):
            inside = target.removeprefix("parley/")
            return room_of_public(inside) if inside in public.folders else str(pathlib.PurePath(inside).with_suffix(""))
        return str((name.parent / target).with_suffix("")) if quote == '"' else None

    rooms = {}
    for name in [*files, *(PUBLIC / name for name in public.folders)]:
        room = room_of_public(name.name) if name.parent == PUBLIC else str(name.with_suffix(""))
        included = rooms.setdefault(room, {})
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), start=1):
            include = INCLUDE.match(line)
            target = room_of(name, *include.groups()) if include else None
            if target:
                included.setdefault(target, f"{name}:{number}")
    for room, included in rooms.items():
        same_folder = {other for other in included if other in rooms and other.split("/")[0] == room.split("/")[0]}
        rooms[room] = {other: included[other] for other in sorted(same_folder - {room})}
    return rooms


def shortest_cycle(rooms, start):
    """The rooms on a way from `start` back to it; none if there is no such way."""
    way_to, unread = {start: [start]}, [start]
    for room in unread:
        for other in rooms[room]:
            if other == start:
                return way_to[room]
            if other not in way_to:
                way_to[other] = way_to[room] + [other]
                unread.append(other)
    return []


def faults_of_rooms(root, public):
    rooms, told = includes_between_rooms(root, public), set()
    for start in rooms:
        cycle = shortest_cycle(rooms, start)
        if not cycle or told & set(cycle):
            continue
        told.update(cycle)
        yield f"{rooms[start][(cycle + [start])[1]]}: files include each other in a cycle: {' -> '.join(cycle + [start])}: move " \
              "what both need below them, or make them one file"


def check(root):
    """Every fault below `root`, as `file:line: what`, and how many files were read."""
    faults, count = [], 0
    names = unordered_names(root)
    public = public_headers(root)
    files = [(folder, path) for folder in ARROWS for path in sorted((root / folder).rglob("*"))]
    files += [(folder, root / PUBLIC / name) for name, folder in public.folders.items() if folder in ARROWS]
    for folder, path in files:
        if path.suffix not in SOURCES:
            continue
        count += 1
        lines = path.read_text(encoding="utf-8").splitlines()
        faults += [f"{path.relative_to(root)}:{number}: {what}" for number, what in faults_of_headers(root, path, lines, public)]
        clocks_allowed = CLOCKS_ALLOWED.get(str(path.relative_to(root)), ())
        for number, line in enumerate(lines, start=1):
            found = [*faults_of_line(folder, line, public, clocks_allowed), *faults_of_order(path, line, names, root)]
            faults += [f"{path.relative_to(root)}:{number}: {what}" for what in found]
    return faults + list(faults_of_rooms(root, public)) + list(faults_of_face(root)) + list(faults_of_users(root)), count


BROKEN = [
    ("runtime/a.hpp", "#include <parley/tuning/planners/plan.hpp>"),
    ("runtime/a.hpp", "#include <ucp/api/ucp.h>"),
    ("tuning/a.cpp", "#include <parley/runtime/wire/link.hpp>"),
    ("tuning/a.cpp", "#include <chrono>"),
    ("transports/a.cpp", "#include <parley/actors/sender.hpp>"),
    ("actors/a.hpp", "#include <parley/transports/ucx/ucx_link.hpp>"),
    ("actors/a.hpp", "#include <chrono>"),
    ("actors/a.hpp", "#  include <ctime>"),
    ("actors/a.cpp", "#include <cuda_runtime.h>"),
    ("actors/a.cpp", "auto start = std::chrono::steady_clock::now();"),
    ("ops/a.cpp", "#include <ucp/api/ucp.h>"),
    ("ops/a.cpp", "#include <parley/cli/progress.hpp>"),
    ("cli/a.cpp", '#include "../include/parley/rank.hpp"'),
    ("simulation/a.cpp", "auto now = std::chrono::system_clock::now();"),
    ("ops/a.hpp", "#include <chrono>"),
    ("include/parley/a.hpp", "#include <chrono>\nnamespace parley::ops {}"),
    ("include/parley/a.hpp", "#include <parley/cli/progress.hpp>\nnamespace parley::ops {}"),
    ("examples/a.cpp", "#include <parley/ops/core/op_host.hpp>"),
    ("ops/a.cpp", "#include <boost/asio/steady_timer.hpp>"),
    ("ops/a.cpp", "auto start = std::chrono::steady_clock::now();"),
    ("runtime/a.cpp", "#include <ctime>"),
    ("runtime/a.cpp", "::clock_gettime(CLOCK_MONOTONIC, &t);"),
    ("runtime/a.cpp", "const auto ticks = __rdtsc();"),
    ("runtime/time/reactor.hpp", "#include <chrono>"),
    ("runtime/time/reactor.cpp", "auto now = std::chrono::system_clock::now();"),
    ("runtime/time/reactor.cpp", "clock_gettime(CLOCK_REALTIME, &t);"),
    ("ops/a.cpp", "std::random_device device;"),
    ("actors/a.cpp", "std::mt19937_64 engine(7);"),
    ("tuning/a.cpp", "std::uniform_int_distribution<int> die(1, 6);"),
    ("simulation/a.cpp", "std::unordered_map<int, int> all; for (auto& one : all) use(one);"),
    ("runtime/a.cpp", "std::unordered_set<int> all; for (auto& one : all) use(one);"),
    ("runtime/a.cpp", "std::random_device device;"),
    ("actors/a.cpp", "boost::unordered_flat_map<int, int> all; for (auto& one : all) use(one);"),
    ("actors/a.cpp", "boost::unordered_node_set<int> all; auto first = all.begin();"),
    ("ops/a.cpp", "std::map<const edge*, int> all;"),
    ("simulation/a.cpp", "std::set<std::vector<int>*> all;"),
    ("runtime/a.cpp", "cuCtxSynchronize();"),
    ("tuning/a.cpp", "auto wait = &cudaStreamSynchronize;"),
    ("transports/a.cpp", "cudaDeviceSynchronize();"),
    ("transports/a.cu", "cudaStreamSynchronize_ptsz(s);"),
    ("actors/a.hpp", "cudaStreamSynchronize(s);"),
    ("ops/a.cpp", 'const auto f = find(library, "cuStreamSynchronize_ptsz");'),
]
SOUND = [
    ("runtime/a.hpp", "#include <parley/error.hpp>"),
    ("transports/a.cpp", "#include <ucp/api/ucp.h>"),
    ("actors/a.hpp", "#include <parley/tuning/planners/plan.hpp>"),
    ("actors/a.hpp", "// steady_clock is read by the executor only"),
    ("ops/a.hpp", "#include <parley/actors/sender.hpp>"),
    ("runtime/time/reactor.cpp", "#include <chrono>"),
    ("runtime/time/reactor.cpp", "clock_gettime(CLOCK_MONOTONIC, &t);"),
    ("ops/a.cpp", "const time_ns began_ns = executor.now();  // and no steady_clock"),
    ("include/parley/a.hpp", "#include <parley/ops/core/op_ref.hpp>\nnamespace parley::ops {}"),
    ("examples/a.cpp", "#include <parley/rank.hpp>"),
    ("cli/a.cpp", "#include <parley/rank.hpp>"),
    ("actors/a.cpp", "std::unordered_map<int, int> all; auto at = all.find(7);"),
    ("actors/a.cpp", "std::map<int, int> all; for (auto& one : all) use(one);"),
    ("actors/a.cpp", "boost::unordered_flat_map<int, int> all; auto at = all.find(7);"),
    ("ops/a.cpp", "std::map<int, edge*> all;"),
    ("transports/a.cpp", "cudaStreamQuery(s);  // and no cudaStreamSynchronize"),
    ("transports/a.cpp", "cudaEventQuery(e);"),
    ("cli/a.cpp", "cudaDeviceSynchronize();"),
]
# The text of ops/a.hpp, that of ops/a.cpp, and where the fault lies, if there is one.
HEADERS = [
    ("", "#include <parley/ops/a.hpp>", "ops/a.hpp:1: "),
    ("#pragma once", "#include <vector>\n#include <parley/ops/a.hpp>", "ops/a.cpp:1: "),
    ("#pragma once", "// includes nothing", "ops/a.cpp:1: "),
    ("#pragma once", "#include <parley/ops/a.hpp>\n\n#include <vector>", None),
]
# What includes which public header, that header, and where the fault lies, if there is one.
LAYERS = [
    ("runtime/a.cpp", "namespace parley::ops {}", "runtime/a.cpp:1: "),
    ("runtime/a.cpp", "namespace parley {}", "runtime/a.cpp:1: "),
    ("ops/a.cpp", "namespace parley::runtime {}", None),
    ("ops/b.cpp", "namespace parley::ops {}", "ops/b.cpp:1: "),
]
# Of <parley/parley.hpp> and a header that it includes, and where the fault lies, if there is one.
FACES = [
    ("#include <parley/ops/a.hpp>", "#include <parley/actors/agreement/messages.hpp>", "ops/a.hpp:2: "),
    ("#include <boost/asio/io_context.hpp>", "", "include/parley/parley.hpp:1: "),
    ("#include <parley/ops/a.hpp>", "#include <parley/actors/edge/outgoing.hpp>", None),
    ("#include <vector>", "#include <parley/actors/agreement/messages.hpp>", None),
]
# Trees of several rooms, and where the fault lies, if there is one.
ROOMS = [
    ({"include/parley/a.hpp": "#pragma once\n#include <parley/ops/in/b.hpp>\nnamespace parley::ops {}",
      "ops/in/a.cpp": "#include <parley/a.hpp>",
      "ops/in/b.hpp": "#pragma once",
      "ops/in/b.cpp": "#include <parley/ops/in/b.hpp>\n#include <parley/a.hpp>"}, "include/parley/a.hpp:2: "),
    ({"actors/a.hpp": "#pragma once\n#include <parley/actors/b.hpp>",
      "actors/b.hpp": "#pragma once",
      "actors/b.cpp": "#include <parley/actors/b.hpp>\n#include <parley/actors/in/c.hpp>",
      "actors/in/c.hpp": "#pragma once\n#include <parley/actors/a.hpp>"}, "actors/a.hpp:2: "),
    ({"actors/a.hpp": "#pragma once\n#include <parley/actors/b.hpp>",
      "actors/b.hpp": "#pragma once",
      "actors/b.cpp": "#include <parley/actors/b.hpp>\n#include <parley/actors/in/c.hpp>",
      "actors/in/c.hpp": "#pragma once\n#include <parley/actors/b.hpp>"}, "actors/b.cpp:2: "),
    ({"actors/a.hpp": "#pragma once\n#include <parley/actors/b.hpp>",
      "actors/a.cpp": "#include <parley/actors/a.hpp>\n#include <parley/actors/in/c.hpp>",
      "actors/b.hpp": "#pragma once\n#include <parley/actors/in/c.hpp>",
      "actors/in/c.hpp": "#pragma once"}, None),
]


def faults_of_tree(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        return check(pathlib.Path(folder))[0]


def self_test():
    trees = [({name: f"#pragma once\n{line}"}, f"{name}:2: ") for name, line in BROKEN]
    trees += [({name: f"#pragma once\n{line}"}, None) for name, line in SOUND]
    trees += [({"ops/a.hpp": header, "ops/a.cpp": source}, at) for header, source, at in HEADERS]
    trees += ROOMS
    trees += [({name: "#include <parley/b.hpp>" if at != "ops/b.cpp:1: " else "#include <vector>",
                "include/parley/b.hpp": f"#pragma once\n{header}"}, at) for name, header, at in LAYERS]
    trees += [({f"include/{FACE}": face, "ops/a.hpp": f"#pragma once\n{header}"}, at) for face, header, at in FACES]
    wrong = []
    for files, at in trees:
        faults = faults_of_tree(files)
        if len(faults) != (at is not None) or any(not fault.startswith(at) for fault in faults):
            wrong.append(f"{files}: {at or 'no fault'} expected, found {faults}")
    print("\n".join(wrong) or f"self-test: {len(trees)} trees judged rightly")
    return 1 if wrong else 0


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--self-test", action="store_true")
    if options.parse_args().self_test:
        return self_test()
    faults, count = check(pathlib.Path(__file__).resolve().parents[2])
    print("\n".join(faults) or f"arrows: {count} files follow them")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
