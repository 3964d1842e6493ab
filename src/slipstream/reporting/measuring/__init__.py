"""Reports of measurements: each record as text, page and Markdown."""
