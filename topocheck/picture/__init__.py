"""The drawing of a node: what is drawn, and where. No format: templates of `render` make SVG of it."""
