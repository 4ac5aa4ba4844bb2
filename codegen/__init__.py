"""Renders everything a caller of ortrain sees from the description in ``spec/``.

Reading (:mod:`codegen.spec.source`), checking (:mod:`codegen.spec.check`), the checked model (:mod:`codegen.spec.model`),
rendering (:mod:`codegen.render`) and writing (:mod:`codegen.write`) are separate; ``python -m codegen`` joins
them. How a language uses the model: :mod:`codegen.languages.c`, its neighbours, and the templates.
"""
