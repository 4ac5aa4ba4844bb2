"""Files: reading them with errors that name the place, writing them whole or not at all, and models in them."""
