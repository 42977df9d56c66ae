"""One supervised `puppet apply`, from its preparation to a record that cannot lie.

decides: `hold`, `options`, `reason`, `run`, `stopping`.
acts: `holds`, `metrics`, `node_lock`, `preparing`, `records`, `supervisor`, `watching`.
ports: `observer`.
"""
