"""The code that pages show, for checks that use it as a reader would."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_block(page, language, holding=""):
    """The first block of that language in a page, such as README.md, that has the text `holding`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if holding in block)
