"""Renders, from the description in ``spec/``, everything that a caller of ortrain sees.

Reading (:mod:`codegen.spec.source`), checking (:mod:`codegen.spec.check`), the checked model (:mod:`codegen.spec.model`),
rendering (:mod:`codegen.render`) and writing (:mod:`codegen.write`) are separate; ``python -m codegen`` joins
them. The packages in :mod:`codegen.languages`, with their templates, turn the model into text.
"""
