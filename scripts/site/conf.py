"""Sphinx's settings for the documentation site (``make site``); ``site_pages.py`` has what is unusual about it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from site_pages import FILES, ROOT

project, author = "Triton Serving Labs", "the Triton Serving Labs authors"
project_copyright = f"2026 {author}"
root_doc = "index"
extensions = ["myst_parser", "site_pages", "sphinx.ext.githubpages"]
include_patterns = sorted(path.relative_to(ROOT).as_posix() for path in FILES)
exclude_patterns = [".*", "results", "site", "src", "tests"]  # not searched: links in .labs may lead in circles
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # the anchors that GitHub gives headings
nitpicky = True

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sphinx = html_domain_indices = html_use_index = False
html_theme_options = {"top_of_page_buttons": []}
