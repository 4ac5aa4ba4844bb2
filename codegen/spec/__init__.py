"""The spec: reading (:mod:`.source`), checking (:mod:`.check`) and the checked model (:mod:`.model`)."""
