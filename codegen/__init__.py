"""Renders everything a caller of ortrain sees from the description in ``spec/``.

Reading (:mod:`codegen.source`), checking (:mod:`codegen.check`), the checked model (:mod:`codegen.model`),
rendering (:mod:`codegen.render`) and writing (:mod:`codegen.write`) are separate; ``python -m codegen`` joins
them. What a language makes of the model: :mod:`codegen.c_language`, its neighbours, and the templates.
"""
