#!/usr/bin/env python3
"""What doxygen reads of a page or a header, so that the site says what the repository says:

    site.py docs/running.md            prints the page with an anchor at each heading, and with links by these anchors
    site.py include/parley/p2p.hpp     prints the header, whose first comment is about the file

Links to pages and to public headers go to their places in the site. What the site does not have, such as a source, keeps its text alone.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cmake/checks"))
from links import ROOT, anchor_of  # noqa: E402

FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
OF_SITE = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def name_of(page):
    return page.stem.lower().replace("-", "_")


def anchored(page, heading):
    level, text = heading.group(1), heading.group(2).strip()
    anchor = name_of(page) if level == "#" else f"{name_of(page)}_{anchor_of(text)}"
    return f"{level} {text} {{#{anchor}}}"


def linked(page, link):
    text, target = link.group(1), link.group(2)
    if re.match(r"\w+:", target):
        return link.group()
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    inside = file.relative_to(ROOT)
    if file.suffix == ".md" and (inside.parts[0] == "docs" or str(inside) in OF_SITE):
        return f"[{text}](@ref {name_of(file)}{'_' + anchor if anchor else ''})"
    if file.suffix == ".hpp" and inside.parts[:2] == ("include", "parley"):
        return f'<a href="{header_page(file.name)}">{text}</a>'
    return text


def header_page(name):
    """As doxygen names the page of a file: `_` is `__`, a dot `_8`, a capital letter `_` and the small one."""
    return re.sub(r"[A-Z]", lambda c: "_" + c.group().lower(), name.replace("_", "__").replace(".", "_8")) + ".html"


def filtered(page):
    parts = FENCE.split(page.read_text(encoding="utf-8"))
    for i in range(0, len(parts), 2):  # between the blocks of code
        prose = re.sub(r"^(#+) (.*)$", lambda heading: anchored(page, heading), parts[i], flags=re.MULTILINE)
        parts[i] = re.sub(r"(?<!!)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s]+)\)", lambda link: linked(page, link), prose)
    return re.sub(r'<img src="(?:docs/)?', '<img src="', "".join(parts))


def about_file(header):
    return re.sub(r"^///", "/// @file\n///", header.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1]).resolve()
    sys.stdout.write(filtered(file) if file.suffix == ".md" else about_file(file))
