"""Records as HTML pages and Markdown."""
