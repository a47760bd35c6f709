"""How a build compiles one of its sources, for checks and measurements that compile something else in the same way."""

import json
import pathlib
import re
import shlex


def options_of(build, source):
    """The compiler and its options, and the path of `source`, such as examples/send_recv.cpp; without optimisation, and without headers
    that were parsed before. None where the build does not compile it."""
    commands = pathlib.Path(build) / "compile_commands.json"
    entries = json.loads(commands.read_text(encoding="utf-8")) if commands.exists() else []
    found = next((entry for entry in entries if entry["file"].endswith(f"/{source}")), None)
    if found is None:
        return None
    words, kept = shlex.split(found["command"]), []
    while words:
        word = words.pop(0)
        # clang is told of parsed headers by -Xclang
        if word in ("-o", "-c", "-MT", "-MF", "-Xclang") or (word == "-include" and "cmake_pch" in words[0]):
            words.pop(0)
        elif word not in ("ccache", "-MD", "-Winvalid-pch") and not re.fullmatch(r"-O\d", word):
            kept.append(word)
    return kept, found["file"]
