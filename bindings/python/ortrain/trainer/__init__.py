"""Training without writing the loop: :class:`Trainer`, its callbacks and its metrics."""

from ortrain.trainer import callbacks, loggers, metrics
from ortrain.trainer.accountant import Accountant
from ortrain.trainer.callbacks import (
    Callback,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from ortrain.trainer.core import Trainer
from ortrain.trainer.feature_store import FeatureCache
from ortrain.trainer.freezing import FreezeGroups
from ortrain.trainer.importance import fisher
from ortrain.trainer.json_log import JSONLogger
from ortrain.trainer.loggers import (
    CSVLogger,
    LearningRateMonitor,
    MLflowLogger,
    TensorBoard,
    WandbLogger,
)
from ortrain.trainer.metrics import (
    AUC,
    F1,
    MAE,
    R2,
    Accuracy,
    ConfusionMatrix,
    CoreMetric,
    FunctionMetric,
    IoU,
    Metric,
    Perplexity,
    TopK,
)
from ortrain.trainer.mezo import MeZO
from ortrain.trainer.plotting import plot
from ortrain.trainer.private import Privacy
from ortrain.trainer.progress import ProgbarLogger
from ortrain.trainer.rate_search import LearningRates
from ortrain.trainer.rehearsal import Rehearsal
from ortrain.trainer.schedules import Schedule

__all__ = [
    "AUC",
    "F1",
    "MAE",
    "R2",
    "Accountant",
    "Accuracy",
    "CSVLogger",
    "Callback",
    "ConfusionMatrix",
    "CoreMetric",
    "EarlyStopping",
    "FeatureCache",
    "FreezeGroups",
    "FunctionMetric",
    "IoU",
    "JSONLogger",
    "LambdaCallback",
    "LearningRateMonitor",
    "LearningRateScheduler",
    "LearningRates",
    "MLflowLogger",
    "MeZO",
    "Metric",
    "ModelCheckpoint",
    "Perplexity",
    "Privacy",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "Rehearsal",
    "Schedule",
    "TensorBoard",
    "TerminateOnNaN",
    "TopK",
    "Trainer",
    "WandbLogger",
    "callbacks",
    "fisher",
    "loggers",
    "metrics",
    "plot",
]
