"""How Sphinx makes the documentation's site; tools/docs_site.py gathers the pages and calls it (``make docs``).

Pages are CommonMark, read by MyST without its additions, so that they look as on a forge.
"""

project = "BERT pretraining operator"
extensions = ["myst_parser"]
root_doc = "README"

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# Anchors are named as forges name them; a link to one that is not there is a warning, and so an error.
myst_heading_anchors = 4
# {name}`text`, lines that begin with %, +++ or (name)=: words of a page, not commands.
myst_disable_syntax = ["myst_role", "myst_line_comment", "myst_block_break", "myst_target"]
