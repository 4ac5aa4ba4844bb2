"""Loss functions.

Each block adds the loss to the registered model, and an input for the target unless the model has a value with
that name.
"""

from __future__ import annotations

from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.loss._loss import Loss
from ortrain.onnxblock.loss.basic import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    TokenCrossEntropyLoss,
)
from ortrain.onnxblock.loss.elastic import ElasticWeights
from ortrain.onnxblock.loss.elementwise import (
    DistillationLoss,
    FocalLoss,
    GaussianNLLLoss,
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    LogCoshLoss,
    PoissonNLLLoss,
    QuantileLoss,
    SmoothL1Loss,
    SoftCrossEntropyLoss,
)
from ortrain.onnxblock.loss.overlap import DiceLoss, JaccardLoss, TverskyLoss
from ortrain.onnxblock.loss.sequence import CTCLoss
from ortrain.onnxblock.loss.several import SumOfLosses
from ortrain.onnxblock.loss.similarity import (
    ContrastiveLoss,
    CosineEmbeddingLoss,
    InfoNCELoss,
    SupConLoss,
    TripletMarginLoss,
)

#: The losses by the names that the command line and the trainer take.
LOSSES: dict[str, type[Block]] = {
    "cross_entropy": CrossEntropyLoss,
    "mse": MSELoss,
    "bce_with_logits": BCEWithLogitsLoss,
    "l1": L1Loss,
    "soft_cross_entropy": SoftCrossEntropyLoss,
    "focal": FocalLoss,
    "huber": HuberLoss,
    "smooth_l1": SmoothL1Loss,
    "log_cosh": LogCoshLoss,
    "quantile": QuantileLoss,
    "gaussian_nll": GaussianNLLLoss,
    "poisson_nll": PoissonNLLLoss,
    "kl_div": KLDivLoss,
    "distillation": DistillationLoss,
    "hinge": HingeLoss,
    "dice": DiceLoss,
    "jaccard": JaccardLoss,
    "tversky": TverskyLoss,
    "cosine_embedding": CosineEmbeddingLoss,
    "contrastive": ContrastiveLoss,
    "triplet": TripletMarginLoss,
    "info_nce": InfoNCELoss,
    "supcon": SupConLoss,
    "ctc": CTCLoss,
    "token_cross_entropy": TokenCrossEntropyLoss,
}

__all__ = [
    "BCEWithLogitsLoss",
    "CTCLoss",
    "ContrastiveLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "DiceLoss",
    "DistillationLoss",
    "ElasticWeights",
    "FocalLoss",
    "GaussianNLLLoss",
    "HingeLoss",
    "HuberLoss",
    "InfoNCELoss",
    "JaccardLoss",
    "KLDivLoss",
    "L1Loss",
    "LogCoshLoss",
    "Loss",
    "MSELoss",
    "PoissonNLLLoss",
    "QuantileLoss",
    "SmoothL1Loss",
    "SoftCrossEntropyLoss",
    "SumOfLosses",
    "SupConLoss",
    "TokenCrossEntropyLoss",
    "TripletMarginLoss",
    "TverskyLoss",
]
