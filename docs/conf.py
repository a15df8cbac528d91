"""Sphinx's settings for `make docs`: the Markdown of this folder, and the API from the docstrings."""

project = "minigpt"
html_title = "minigpt"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
exclude_patterns = ["README.md"]
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
suppress_warnings = ["myst.header"]
