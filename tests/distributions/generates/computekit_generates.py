"""A plugin that raises what closes generators."""

raise GeneratorExit
