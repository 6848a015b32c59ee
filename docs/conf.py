# SPDX-License-Identifier: Apache-2.0
"""The site: `make docs` builds it into build/docs."""

import importlib.metadata
import re

project = "jax_convbatch"
author = "The jax_convbatch authors"
copyright = author
release = importlib.metadata.version("jax_convbatch")
version = release

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
nitpicky = False

html_theme = "furo"
html_title = f"jax_convbatch {release}"

# Headings are link targets, by the names that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]

nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_kernel_rgx_aliases = {".*": "python3"}

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_attr_annotations = False


def _plain(app, what, name, obj, options, lines):
    """Docstrings are plain text: indented paragraphs are code, `*` is an asterisk."""
    # Names of arguments may take several lines.
    joined, count = "\n".join(lines), 1
    while count:
        joined, count = re.subn(r"(?m)^(  \w[\w, ]*,)\n +(?=\w)", r"\1 ", joined)
    lines[:] = joined.split("\n")
    found, code = [], False
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if indented and not before and not code:
            found += ["::", ""]
        code = (indented and (code or not before)) or (code and not line)
        if code:
            found.append(line)
            continue
        parts = re.split(r"(``?[^`]*``?)", line)
        if not line.lstrip().startswith("*"):
            parts[::2] = (
                re.sub(r"(\*|(?<=\w)_(?=\W))", r"\\\1", p) for p in parts[::2]
            )
        # After code, letters need a separator, as in `jax.Array`s.
        parts[2::2] = (re.sub(r"^(?=\w)", r"\\ ", p) for p in parts[2::2])
        found.append("".join(parts))
    lines[:] = found


def _short(app, what, name, obj, options, signature, returns):
    """Defaults by their names, without what Flax adds to every module."""
    for pattern, shown in (
        (r", parent=<[^>]*>, name=None", ""),
        (r"<function [\w.]*<locals>[^>]*>", "..."),
        (r"<function (\w+)>", r"\1"),
        (r"<class '(?:\w+\.)*(\w+)'>", r"\1"),
    ):
        signature = re.sub(pattern, shown, signature or "")
    return signature or None, returns


def _own_pages(app, docname, source):
    """Files beside `docs` that the site has as pages of its own."""
    source[0] = source[0].replace("](../../CONTRIBUTING.md", "](index.md")


def setup(app):
    app.connect("autodoc-process-docstring", _plain, priority=400)
    app.connect("autodoc-process-signature", _short)
    app.connect("source-read", _own_pages)
