#!/usr/bin/env python3
"""Checks what the pages of this repository point to: links to files and to headings of pages, and the paths of files that they name.

    links.py                 every tracked page (*.md); prints what leads nowhere, and ends with status 1 if anything does
    links.py --self-test     shows that it can fail

A path is named by a folder of the source and an ending, as in `ops/edges/transfer.cpp`; bench/NAME.cpp stands for many. Addresses on the web are not fetched.
"""

import functools
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = "actors|bench|cli|cmake|docs|examples|fuzz|include|ops|runtime|simulation|tests|transports|tuning"
ENDINGS = "cpp|cu|cuh|hpp|json|md|py|sh|svg|txt"
LINK = re.compile(r"\]\(([^)\s]+)\)")
IMAGE = re.compile(r'<img src="([^"]+)"')
PATH = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\.(?:{ENDINGS}))\b")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchor_of(heading):
    """As the usual renderers make it: words in small letters, joined by hyphens."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@functools.cache
def anchors_of(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {anchor_of(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def wrong_in(root, page):
    text = page.read_text(encoding="utf-8")
    prose = FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    for found in list(LINK.finditer(prose)) + list(IMAGE.finditer(prose)):
        target = found.group(1)
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        line = prose.count("\n", 0, found.start()) + 1
        if not file.exists():
            yield line, f"the link to {target} leads to no file"
        elif anchor and file.suffix == ".md" and anchor not in anchors_of(file):
            yield line, f"the link to {target} leads to no heading of {file.relative_to(root)}"
    for found in PATH.finditer(text):
        path = pathlib.PurePath(found.group(1))
        if not path.stem.isupper() and not any((folder / path).exists() for folder in (root, page.parent)):
            yield text.count("\n", 0, found.start()) + 1, f"there is no file {found.group(1)}"


def check(root, pages):
    wrong = [(page, line, what) for page in pages for line, what in wrong_in(root, page)]
    for page, line, what in wrong:
        print(f"{page.relative_to(root)}:{line}: {what}", file=sys.stderr)
    return len(wrong)


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "docs").mkdir()
        (root / "docs/there.md").write_text("# There\n\n## What `it` says, here\n")
        page = root / "page.md"
        page.write_text("[a](docs/there.md) [b](docs/there.md#what-it-says-here) docs/there.md [web](https://nowhere.example)\n"
                        "```\n[c](gone.md)\n```\n")
        if check(root, [page]) != 0:
            sys.exit("links: what is right was refused")
        page.write_text("[a](docs/gone.md)\n[b](docs/there.md#gone)\nops/gone.cpp\n<img src=\"docs/gone.svg\">\n")
        if check(root, [page]) != 6:  # what a link or a picture names is a path, too
            sys.exit("links: something that leads nowhere was not found")
    print("links: finds links, headings, pictures and paths that lead nowhere")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    named = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.glob("*.md")]
    pages = [ROOT / name for name in named if (ROOT / name).exists()]
    wrong = check(ROOT, pages)
    if wrong:
        sys.exit(f"links: {wrong} lead nowhere")
    print(f"links: those of {len(pages)} pages lead somewhere")


if __name__ == "__main__":
    main()
