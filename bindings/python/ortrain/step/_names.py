"""Names in a step model: its inputs and outputs besides those of the network, and its entry in the metadata."""

#: The entry of the model's metadata that describes its inputs and outputs, as JSON, and the version of that description.
METADATA, VERSION = "ortrain.step", 2
SEED, RATE, STEP, SCALE, FINITE = "seed", "learning_rate", "step", "loss_scale", "all_finite"
#: Suffixes that are appended to a parameter's name, for: its value after the step, its gradient, its moments by number.
NEXT, GRADIENT, MOMENT = ".next", ".grad", ".momentum"
#: Seeds are below this prime.
SEEDS = 2**31 - 1
#: The most states that a parameter has: those of an optimizer, and the average of the weights.
MOST_STATES = 5
#: The name of the group in an optimizer model with a single group.
ONLY_GROUP = "group0"
#: The entry of the metadata, and the property of checkpoints, with the digest of the weights that adapters were made for.
ADAPTER_BASE = "ortrain.adapter_base"
