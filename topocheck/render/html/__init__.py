"""Pages and drawings: templates of `render/templates` filled with what was found."""
